"""What clients ask of the loader, pins and sizes: passed on under a number of our own, answered once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, assert_never

from mtp_daemon.errors import RequestKind
from mtp_protocol import client_messages as c
from mtp_protocol import loader_messages as ld

# A recall of many slots may have to wait for the engine's running forward.
ERRAND_S = 60.0


@dataclass(frozen=True)
class _Errand:
    client: bytes
    ref: int
    deadline: float


class Errands:
    """Owner of what was passed on and is not answered yet."""

    def __init__(self, reply: Callable[[bytes, c.ToClient], None]) -> None:
        self._reply = reply
        self._open: dict[int, _Errand] = {}
        self._refs = count(1)

    def send(self, client: bytes, ref: int, now: float, pass_on: Callable[[int], None]) -> None:
        """`pass_on` sends the message to the loader with the number it is given."""
        mine = next(self._refs)
        self._open[mine] = _Errand(client, ref, now + ERRAND_S)
        pass_on(mine)

    def answered(self, message: ld.Stats | ld.Resized | ld.Pinned | ld.Failed) -> None:
        """The loader's answer; one that nobody waits for any more is dropped."""
        errand = self._open.pop(message.ref or 0, None)
        if errand is None:
            return
        result: Mapping[str, Any]
        match message:
            case ld.Failed():
                self._reply(errand.client, c.Failed(message.kind, message.text, ref=errand.ref))
                return
            case ld.Stats():
                result = message.stats
            case ld.Resized():
                result = {"slots": list(message.slots)}
            case ld.Pinned():
                result = {"pinned": message.pinned}
            case _:
                assert_never(message)
        self._reply(errand.client, c.Done(errand.ref, result))

    def expire(self, now: float) -> None:
        for mine, errand in list(self._open.items()):
            if now >= errand.deadline:
                self._fail(mine, "environment", f"the loader did not answer within {ERRAND_S:g} s")

    def fail_all(self, text: str) -> None:
        """The loader is dead."""
        for mine in list(self._open):
            self._fail(mine, "environment", text)

    def _fail(self, mine: int, kind: RequestKind, text: str) -> None:
        errand = self._open.pop(mine)
        self._reply(errand.client, c.Failed(kind, text, ref=errand.ref))
