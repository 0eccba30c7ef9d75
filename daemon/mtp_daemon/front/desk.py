"""What a client's message sets off. Every one of them is answered: by Accepted, Done, Welcome or Failed."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, assert_never

from mtp_daemon.errors import DaemonError, EnvironmentFailure, RequestError, RequestKind, UserError
from mtp_daemon.front.clients import Clients
from mtp_daemon.front.errands import Errands
from mtp_daemon.front.lineup import Lineup
from mtp_daemon.front.sessions import Sessions
from mtp_daemon.sizes import parse_pool
from mtp_loader.errors import EnvironmentFailure as LoaderEnvironmentFailure
from mtp_loader.errors import LoaderError
from mtp_loader.errors import UserError as LoaderUserError
from mtp_loader.pool.layout import make_layout
from mtp_protocol import client_messages as c
from mtp_protocol import loader_messages as ld
from mtp_protocol.codec import MAJOR, MINOR
from mtp_protocol.errors import ProtocolError
from mtp_protocol.geometry import Geometry, PoolLayout

log = logging.getLogger("mtpd")

MAX_SHUTDOWN_S = 3600.0


class Desk:
    """Parses nothing and owns nothing: it passes each message to whose business it is."""

    def __init__(
        self,
        model: str,
        clients: Clients,
        sessions: Sessions,
        lineup: Lineup,
        errands: Errands,
        status: Callable[[], Mapping[str, Any]],
        shut_down: Callable[[float], None],
        bytes_for: Callable[[str, Geometry], int],
        want_slots: Callable[[tuple[int, ...]], tuple[int, ...]],
    ) -> None:
        self.bad_messages = 0
        self._model, self._clients, self._sessions = model, clients, sessions
        self._lineup, self._errands = lineup, errands
        self._status, self._shut_down, self._bytes_for = status, shut_down, bytes_for
        self._want_slots = want_slots

    def take(self, client: bytes, message: c.FromClient | ProtocolError, now: float) -> None:
        if not self._clients.admit(client, now):
            return
        if isinstance(message, ProtocolError):
            self.bad_messages += 1
            # The first of them, then ever fewer: nobody fills our log by sending rubbish.
            if self.bad_messages <= 16 or self.bad_messages.bit_count() == 1:
                count = self.bad_messages
                log.warning("client %s sent what is no message (%d so far): %s", client.hex(), count, message)
            # A message that could be read but for a value out of its range is a person's mistake, not a program's.
            readable = message.kind == "bad_value" and message.ref is not None
            self._clients.reply(client, c.Failed("bad_request" if readable else "protocol", str(message), message.ref))
            return
        try:
            self._serve(client, message, now)
        except RequestError as error:
            self._refuse(client, message, error)
        except (LoaderError, DaemonError) as error:
            self._refuse(client, message, RequestError(_kind(error), str(error)))

    def _refuse(self, client: bytes, message: c.FromClient, error: RequestError) -> None:
        """A request that was never accepted is counted apart: of those accepted each has one of the other ends."""
        if isinstance(message, c.Submit):
            self._sessions.counts["turned_away"] += 1
        self._clients.refuse(client, message.ref, error)

    def _serve(self, client: bytes, message: c.FromClient, now: float) -> None:
        match message:
            case c.Hello():
                self._clients.name(client, message.client)
                self._clients.reply(client, c.Welcome(message.ref, f"{MAJOR}.{MINOR}", os.getpid(), self._model))
            case c.Submit():
                self._lineup.try_again(now)
                self._sessions.submit(client, message, now)
            case c.Attach():
                self._sessions.attach(client, message, now)
            case c.Cancel():
                self._sessions.cancel(client, message, now)
            case c.Status():
                self._clients.reply(client, c.Done(message.ref, self._status()))
            case c.Pin():
                self._check_pins(message)
                self._pass_on(client, message.ref, now, lambda ref: ld.Pin(ref, message.experts))
            case c.Resize():
                self._lineup.check_loader()
                slots = self._want_slots(self._slots(message.pool))
                self._pass_on(client, message.ref, now, lambda ref: ld.Resize(ref, slots))
            case c.Calibrate():
                self._lineup.check_loader()
                self._calibrate(client, message, now)
            case c.Shutdown():
                if not 0 <= message.deadline_s <= MAX_SHUTDOWN_S:
                    raise RequestError("bad_request", f"deadline_s must lie in 0..{MAX_SHUTDOWN_S:g}")
                self._clients.reply(client, c.Done(message.ref))
                self._shut_down(message.deadline_s)
            case _:
                assert_never(message)

    def _check_pins(self, message: c.Pin) -> None:
        if (geometry := self._lineup.geometry) is None:
            return
        counts = {layer.layer: layer.experts for layer in geometry.layers}
        for layer, expert in message.experts:
            if layer not in counts:
                raise RequestError("bad_request", f"layer {layer} has no experts; those that have: {_ranges(counts)}")
            if not 0 <= expert < counts[layer]:
                raise RequestError(
                    "bad_request", f"there is no expert {layer}:{expert}; they are 0 to {counts[layer] - 1}"
                )

    def _pass_on(self, client: bytes, ref: int, now: float, make: Callable[[int], ld.ToLoader]) -> None:
        self._lineup.check_loader()
        self._errands.send(client, ref, now, make)

    def _calibrate(self, client: bytes, message: c.Calibrate, now: float) -> None:
        if self._errands.calibrating:
            raise RequestError("busy", "a calibration is under way already; wait for its end")
        if message.last_s is not None and not message.last_s >= 0.0:
            raise RequestError("bad_request", "last_s must be a number of seconds from 0 up")
        if not all(0.0 < share <= 1.0 for share in message.shares):
            raise RequestError("bad_request", "shares must be numbers above 0 and at most 1")
        self._errands.calibrate(client, message, now)

    def _slots(self, pool: str) -> tuple[int, ...]:
        """Slots of each bank for a new size of the pool. The region stays as large as it was made: "auto" is at most
        that, and any other size beyond it is refused.
        """
        geometry, layout = self._lineup.geometry, self._lineup.layout
        if geometry is None or layout is None:
            raise RequestError("environment", "there is no pool yet; try again later")
        nbytes = self._bytes_for(pool, geometry)
        if parse_pool(pool).auto:
            nbytes = min(nbytes, sum(geometry.banks[bank.bank].slot_bytes * bank.slots for bank in layout.banks))
        wanted = self._layout_of(geometry, nbytes, layout)
        return tuple(bank.slots for bank in wanted.banks)

    @staticmethod
    def _layout_of(geometry: Geometry, nbytes: int, layout: PoolLayout) -> PoolLayout:
        wanted = make_layout(geometry, nbytes, layout.generation)
        if any(new.slots > old.slots for new, old in zip(wanted.banks, layout.banks, strict=True)):
            raise RequestError(
                "unsupported", "the pool cannot grow beyond the size it was started with: restart with a larger --pool"
            )
        return wanted


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3, 5`: runs of numbers as people write them."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _kind(error: LoaderError | DaemonError) -> RequestKind:
    """Whose fault it is, as the wire says it: what the machine cannot do is no mistake of whoever asked."""
    match error:
        case UserError() | LoaderUserError():
            return "bad_request"
        case EnvironmentFailure() | LoaderEnvironmentFailure():
            return "environment"
        case _:
            return "internal"
