"""`mtpd install-service`, `uninstall-service` and `logs`: each says what it does; twice is the same as once."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from mtp_daemon.errors import EnvironmentFailure, UserError
from mtp_daemon.services.units import LAUNCHD_LABEL, SYSTEMD_UNIT, Places, places, render

Run = Callable[[Sequence[str]], int]
_COMMAND_TIMEOUT_S = 60.0


def run_command(command: Sequence[str]) -> int:
    """Show a command and run it; its exit code, 127 when there is no such command."""
    print("  $", " ".join(command))
    try:
        return subprocess.run(command, timeout=_COMMAND_TIMEOUT_S, check=False).returncode
    except FileNotFoundError:
        print(f"    there is no {command[0]} here")
        return 127
    except subprocess.TimeoutExpired:
        print(f"    no answer within {_COMMAND_TIMEOUT_S:.0f} s")
        return 124


def install(config_text: str, *, platform: str = sys.platform, run: Run = run_command, where: Places | None = None,
            mtpd: Path | None = None) -> int:  # fmt: skip
    """Write the configuration (unless there is one) and the unit, then start the service. 0 when all went well."""
    where = where or places(platform)
    mtpd = mtpd or _mtpd_command()
    where.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    if where.config.exists():
        other = where.config.read_text(encoding="utf-8", errors="replace") != config_text
        print(f"keeping {where.config}" + (", which is not what was asked for now: edit or remove it" if other else ""))
    else:
        write_file(where.config, config_text)
        print(f"wrote   {where.config}")
    unit = render(mtpd, where, platform)
    if where.unit.exists() and where.unit.read_text(encoding="utf-8") == unit:
        print(f"keeping {where.unit}")
    else:
        write_file(where.unit, unit)
        print(f"wrote   {where.unit}")
    failed = [c for c in _start_commands(where, platform) if run(c)]
    return _report(failed, f"mtpd runs as a service; `mtpd status` shows it, `{_logs_hint(platform)}` its log")


def uninstall(*, platform: str = sys.platform, run: Run = run_command, where: Places | None = None) -> int:
    """Stop the service and remove its unit; configuration and logs stay. 0 also when there was none."""
    where = where or places(platform)
    if not where.unit.exists():
        print(f"no service: {where.unit} is not there")
        return 0
    failed = [c for c in _stop_commands(platform) if run(c)]
    where.unit.unlink()
    print(f"removed {where.unit} (kept {where.config} and {where.logs})")
    if platform != "darwin" and run(["systemctl", "--user", "daemon-reload"]):
        failed.append(["systemctl", "--user", "daemon-reload"])
    return _report(failed, "the service is gone")


def log_command(follow: bool, platform: str = sys.platform, where: Places | None = None) -> list[str]:
    """The command that shows the service's log; raises UserError when no service is installed."""
    where = where or places(platform)
    if not where.unit.exists():
        raise UserError(
            f"no service is installed ({where.unit} is not there): `mtpd install-service MODEL` does that. One that "
            "was started by hand writes to its terminal, and its children to logs/ in its run directory"
        )
    if platform == "darwin":
        return [
            "tail",
            "-n",
            "200",
            *(["-F"] if follow else []),
            *(str(where.logs / f"mtpd.{x}") for x in ("out", "log")),
        ]
    return ["journalctl", "--user", "-u", SYSTEMD_UNIT, "-n", "200", *(["-f"] if follow else ["--no-pager"])]


def write_file(path: Path, text: str) -> None:
    """Write through a temporary file and rename: never half a file. Raises EnvironmentFailure.

    Not protocol's `write_whole`, which leaves modes to the umask: here the file is 0600 from its first byte.
    """
    try:
        _replace(path, text)
    except OSError as error:
        raise EnvironmentFailure(f"cannot write {path}: {error.strerror or error}") from error


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _mtpd_command() -> Path:
    """The `mtpd` beside the running Python, else the one on the PATH; raises EnvironmentFailure."""
    beside = Path(sys.executable).parent / "mtpd"
    found = str(beside) if beside.exists() else shutil.which("mtpd")
    if found is None:
        raise EnvironmentFailure(
            f"no mtpd command beside {sys.executable} or on the PATH: install mtpd there (pip install) and try again"
        )
    return Path(found)


def _start_commands(where: Places, platform: str) -> list[list[str]]:
    if platform == "darwin":
        domain = f"gui/{os.getuid()}"
        # bootout first, or a second bootstrap fails; a service that is not loaded makes no difference.
        return [
            ["sh", "-c", f"launchctl bootout {domain}/{LAUNCHD_LABEL} 2>/dev/null || true"],
            ["launchctl", "bootstrap", domain, str(where.unit)],
        ]
    return [["systemctl", "--user", "daemon-reload"], ["systemctl", "--user", "enable", "--now", SYSTEMD_UNIT]]


def _stop_commands(platform: str) -> list[list[str]]:
    if platform == "darwin":
        return [["launchctl", "bootout", f"gui/{os.getuid()}/{LAUNCHD_LABEL}"]]
    return [["systemctl", "--user", "disable", "--now", SYSTEMD_UNIT]]


def _logs_hint(platform: str) -> str:
    return " ".join(["mtpd", "logs"] + (["--follow"] if platform == "darwin" else []))


def _report(failed: list[list[str]], well: str) -> int:
    if not failed:
        print(well)
        return 0
    print("not done: " + "; ".join(" ".join(c) for c in failed), file=sys.stderr)
    return 1
