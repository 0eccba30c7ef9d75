"""The subcommands of `mtpd`: one module each, with `configure(parser)` and `run(args) -> int`."""

from dataclasses import dataclass
from types import ModuleType

from mtp_daemon.commands import (
    calibrate,
    install_service,
    keygen,
    logs,
    pin,
    resize,
    serve,
    status,
    stop,
    uninstall_service,
)


@dataclass(frozen=True)
class Command:
    """`summary` is its line in `mtpd --help`."""

    name: str
    summary: str
    module: ModuleType


COMMANDS: tuple[Command, ...] = (
    Command("serve", "run the service on a model, in the foreground", serve),
    Command("status", "what the service does: pool, hit rate, queue, children", status),
    Command("stop", "stop the service; a running answer may finish first", stop),
    Command("resize", "give the pool another size while answers go on", resize),
    Command("pin", "hold experts in the pool; none: let go of them", pin),
    Command("calibrate", "find out whether holding experts pays, and hold them only then", calibrate),
    Command("keygen", "make the keys that a service on TCP needs", keygen),
    Command("install-service", "start the service with your session (systemd or launchd)", install_service),
    Command("uninstall-service", "stop that and remove it", uninstall_service),
    Command("logs", "show the installed service's log", logs),
)
