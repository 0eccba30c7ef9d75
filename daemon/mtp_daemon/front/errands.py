"""What clients ask of the loader, pins and sizes: passed on under a number of our own, answered once.

The client of an errand that can be stopped may leave: then the loader is told that nobody waits any more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, assert_never

from mtp_daemon.errors import RequestKind
from mtp_daemon.front.clients import Clients
from mtp_protocol import client_messages as c
from mtp_protocol import loader_messages as ld

# A recall of many slots may have to wait for the engine's running forward.
ERRAND_S = 60.0
# The loader gives a calibration up by itself before that.
CALIBRATE_S = 330.0

Stop = Callable[[int], ld.ToLoader]


@dataclass(frozen=True)
class _Errand:
    client: bytes
    ref: int
    deadline: float
    stop: Stop | None


class Errands:
    """Owner of what was passed on and is not answered yet."""

    def __init__(self, clients: Clients, tell_loader: Callable[[ld.ToLoader], None]) -> None:
        self._clients, self._tell_loader = clients, tell_loader
        self._open: dict[int, _Errand] = {}
        self._refs = count(1)

    @property
    def calibrating(self) -> bool:
        return any(errand.stop is not None for errand in self._open.values())

    def send(self, client: bytes, ref: int, now: float, make: Callable[[int], ld.ToLoader]) -> None:
        """Passes on what `make` makes of the number it is given."""
        self._send(_Errand(client, ref, now + ERRAND_S, None), make)

    def calibrate(self, client: bytes, message: c.Calibrate, now: float) -> None:
        """One at a time. It is stopped when the client leaves."""
        errand = _Errand(client, message.ref, now + CALIBRATE_S, ld.CalibrateStop)
        self._send(errand, lambda mine: ld.Calibrate(mine, message.last_s, message.shares))

    def _send(self, errand: _Errand, make: Callable[[int], ld.ToLoader]) -> None:
        mine = next(self._refs)
        self._open[mine] = errand
        self._tell_loader(make(mine))

    def answered(self, message: ld.Stats | ld.Resized | ld.Pinned | ld.Calibrated | ld.Failed) -> None:
        """The loader's answer; one that nobody waits for any more is dropped."""
        errand = self._open.pop(message.ref or 0, None)
        if errand is None:
            return
        result: Mapping[str, Any]
        match message:
            case ld.Failed():
                self._clients.reply(errand.client, c.Failed(message.kind, message.text, ref=errand.ref))
                return
            case ld.Stats():
                result = message.stats
            case ld.Resized():
                result = {"slots": list(message.slots)}
            case ld.Pinned():
                result = {"pinned": message.pinned}
            case ld.Calibrated():
                result = message.result
            case _:
                assert_never(message)
        self._clients.reply(errand.client, c.Done(errand.ref, result))

    def expire(self, now: float) -> None:
        for mine, errand in list(self._open.items()):
            late, left = now >= errand.deadline, errand.stop is not None and errand.client not in self._clients
            if errand.stop is not None and (late or left):
                self._tell_loader(errand.stop(mine))
            if late or left:  # who has left gets no answer: clients know that
                self._fail(mine, "environment", "the loader did not answer in time")

    def fail_all(self, text: str) -> None:
        """The loader is dead."""
        for mine in list(self._open):
            self._fail(mine, "environment", text)

    def _fail(self, mine: int, kind: RequestKind, text: str) -> None:
        errand = self._open.pop(mine)
        self._clients.reply(errand.client, c.Failed(kind, text, ref=errand.ref))
