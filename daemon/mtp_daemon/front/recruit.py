"""How the children are started: their programs, arguments and limits."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from mtp_daemon.config import Settings
from mtp_daemon.front.child_log import ChildLog
from mtp_daemon.front.liveness import Restarts, Vigil
from mtp_daemon.front.supervise import Family, Role, Supervisor

Program = Callable[[Role], Sequence[str]]

_MODULES = {"loader": "mtp_loader.service", "engine": "mtp_daemon.engine"}


def python_module(role: Role) -> list[str]:
    """The children's own programs. -P: a file in the working directory must not stand in for a module."""
    return [sys.executable, "-P", "-m", _MODULES[role]]


class Recruiter:
    """Makes a supervisor for each role. `sockets` is the directory of the sockets, `logs` of the children's output."""

    def __init__(
        self, settings: Settings, model: Path, sockets: Path, logs: Path, program: Program = python_module
    ) -> None:
        self.sockets = sockets
        self._settings, self._model, self._logs, self._program = settings, model, logs, program

    def supervisor(self, role: Role, family: Family) -> Supervisor:
        s = self._settings
        return Supervisor(
            role,
            lambda epoch: self._command(role, epoch),
            ChildLog(self._logs / f"{role}.log"),
            lambda now: Vigil(s.start_limit_s, s.beat_limit_s, s.progress_limit_s, born=now),
            Restarts(s.restart_limit),
            family,
        )

    def _command(self, role: Role, epoch: int) -> list[str]:
        settings = dict(self._settings.for_child(role))
        if role == "loader":
            # MLX's CPU backend gathers float32 experts only; on a Mac the engine runs on Metal.
            settings["widen"] = sys.platform != "darwin"
        return [
            *self._program(role),
            *("--front", f"ipc://{self.sockets}/children.sock"),
            *("--epoch", str(epoch)),
            *("--socket-dir", str(self.sockets)),
            *("--model", str(self._model)),
            *("--settings", json.dumps(settings)),
        ]
