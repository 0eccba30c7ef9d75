"""Which pins pay, worked out by a process beside the loader: started here, watched, and never waited for.

One at a time. Its input is an unnamed file, so nothing is left whoever dies; its output is read as it comes.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import zmq

log = logging.getLogger(__name__)

LIMIT_S = 300.0
_PROGRAM = (sys.executable, "-P", "-m", "mtp_loader.service.proving")  # -P: no module of the working directory's

Ended = Callable[[int, Mapping[str, Any] | None, str], None]
"""`(ref, answer, why)`: the answer, or None and why there is none."""


@dataclass
class _Proving:
    ref: int
    process: "subprocess.Popen[bytes]"
    output: int
    deadline: float
    said: bytes = b""


class Calibration:
    """Owner of the proving process. `ended` is called once for every one that was begun and not stopped."""

    def __init__(self, poller: zmq.Poller, ended: Ended, program: tuple[str, ...] = _PROGRAM) -> None:
        self._poller, self._ended, self._program = poller, ended, program
        self._proving: _Proving | None = None

    @property
    def running(self) -> bool:
        return self._proving is not None

    def begin(self, ref: int, write: Callable[[BinaryIO], None], job: Mapping[str, Any]) -> None:
        """Only while none runs. `write` puts the recording into the file it is given. Raises OSError."""
        assert self._proving is None
        with tempfile.TemporaryFile() as file:
            write(file)
            file.seek(0)
            command = [*self._program, json.dumps({**job, "recording": f"/dev/fd/{file.fileno()}"})]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=[file.fileno()])
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._proving = _Proving(ref, process, process.stdout.fileno(), time.monotonic() + LIMIT_S)
        self._poller.register(process.stdout.fileno(), zmq.POLLIN)

    def look(self) -> None:
        """Once a turn of the loader's loop: reads what has come, ends what is over or has taken too long."""
        if (proving := self._proving) is None:
            return
        try:
            while data := os.read(proving.output, 1 << 16):
                proving.said += data
        except BlockingIOError:
            if time.monotonic() >= proving.deadline:
                self.stop(proving.ref)
                self._ended(proving.ref, None, f"the calibration was stopped after {LIMIT_S:g} s")
            return
        self.stop(proving.ref)
        answer = _parsed(proving.said)
        self._ended(
            proving.ref, answer, "" if answer is not None else "the calibration broke off; see the loader's log"
        )

    def stop(self, ref: int) -> None:
        """Nobody waits for this one, or it is over: it is killed and reaped. Another number changes nothing."""
        proving = self._proving
        if proving is None or proving.ref != ref:
            return
        self._proving = None
        self._poller.unregister(proving.output)
        proving.process.kill()
        with proving.process:  # closes the pipes and reaps
            pass

    def close(self) -> None:
        if self._proving is not None:
            self.stop(self._proving.ref)


def _parsed(said: bytes) -> Mapping[str, Any] | None:
    try:
        answer = json.loads(said)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
