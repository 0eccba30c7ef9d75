"""Engine and loader: which expert is in which slot, and who may touch it (the four slot rules).

Every message travels as two frames, `[epochs, body]`: `epochs` is `pack_epochs(loader_epoch, engine_epoch)`, numbers
given by the front. A receiver drops and counts a message of another pair: a socket can deliver a dead peer's queue.
"""

import struct
from dataclasses import dataclass

from mtp_protocol.codec import Codec
from mtp_protocol.errors import ProtocolError

_EPOCHS = struct.Struct("<QQ")


def pack_epochs(loader: int, engine: int) -> bytes:
    return _EPOCHS.pack(loader, engine)


def unpack_epochs(frame: bytes) -> tuple[int, int]:
    """`(loader, engine)`; raises ProtocolError when the frame has another size."""
    if len(frame) != _EPOCHS.size:
        raise ProtocolError("bad_epochs", f"an epoch frame has {_EPOCHS.size} bytes, this one {len(frame)}")
    loader, engine = _EPOCHS.unpack(frame)
    return loader, engine


@dataclass(frozen=True)
class Hello:
    """The engine has no map and no graph that reads the pool is unevaluated or running.

    The loader answers `Welcome`. `generation` names the region that the engine has mapped.
    """

    fingerprint: str
    generation: int


@dataclass(frozen=True)
class Need:
    """Demand: every listed expert of `layer` must become resident. None of them is in the engine's map.

    `held_slots` are the slots this wave reads besides (its hits): they are never victims, and a recall pending on one
    of them is no supply. Tickets rise and are never used twice. The engine waits for one wave at a time: a Need takes
    the place of the one before. A slot that was told and recalled while the Need was on its way may serve it.

    `events` are (layer, tokens, distinct experts) of every layer that ran since the engine's last Need, earlier
    forwards' included, each told once; this layer's whole event is the last. So the loader's policy knows the whole
    past when it chooses. It is empty for a layer's later waves and for a Need that is sent again.
    """

    ticket: int
    layer: int
    experts: tuple[int, ...]
    held_slots: tuple[int, ...]
    events: tuple[tuple[int, int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Fed:
    """A forward of the model (not of its head) begins, over these ids. Not sent while every expert is resident."""

    step: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Hint:
    """What upcoming layers will probably route to: per layer, (expert, weight) pairs, weight in 0..1."""

    step: int
    layers: tuple[tuple[int, tuple[tuple[int, float], ...]], ...]


@dataclass(frozen=True)
class Used:
    """What one forward routed to, sent once a forward, after it: per (layer, one entry a token), the experts in rank
    order and their router weights. `tokens` are the token ids that were fed; `phase` is 0 for prompt, 1 for decode.
    `hits` and `misses` count distinct experts per layer event, summed over the forward. `told` is how many of the
    layers, from the first, a Need's `events` told of.
    """

    step: int
    phase: int
    tokens: tuple[int, ...]
    routing: tuple[tuple[int, tuple[tuple[int, ...], ...], tuple[tuple[float, ...], ...]], ...]
    hits: int
    misses: int
    told: int = 0


@dataclass(frozen=True)
class Released:
    """These recalled slots (of `bank`) are given up: no graph unevaluated or running reads them."""

    bank: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Bye:
    """The engine leaves; it reads no slot any more."""


@dataclass(frozen=True)
class Resident:
    layer: int
    expert: int
    slot: int


@dataclass(frozen=True)
class Welcome:
    """`resident` are slots the engine may read from now on."""

    resident: tuple[Resident, ...]
    generation: int


@dataclass(frozen=True)
class NotWelcome:
    """The answer to a Hello of another model or pool than the loader serves; `reason` is for a person."""

    reason: str


@dataclass(frozen=True)
class Filled:
    """These experts are resident; `ticket` names the demand they answer, None for a prefetch.

    A ticket's experts may come in several messages; `remaining` is how many of it are still to come.
    """

    ticket: int | None
    experts: tuple[Resident, ...]
    remaining: int = 0


@dataclass(frozen=True)
class Recall:
    """Please give up these slots of `bank`; they stay readable until `Released`."""

    bank: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class FillFailed:
    """An expert of this ticket could not be read; `reason` names the file and the offset. The ticket is over."""

    ticket: int
    layer: int
    expert: int
    reason: str


@dataclass(frozen=True)
class Limit:
    """How many slots of each bank may be used from now on, in bank order: follows every Welcome and begins a resize.

    A wave fits if its experts and held slots together are no more. A Need sized by an older limit may be answered by
    `FillFailed`; the engine asks again in smaller waves.
    """

    slots: tuple[int, ...]


@dataclass(frozen=True)
class Hinting:
    """Whether `Fed` and `Hint` are of any use: where reading ahead does not pay, guesses are not worth their compute.

    True from each Welcome on, until told otherwise.
    """

    wanted: bool


ToLoader = Hello | Need | Fed | Hint | Used | Released | Bye
ToEngine = Welcome | NotWelcome | Filled | Recall | FillFailed | Limit | Hinting

to_loader: Codec[ToLoader] = Codec(Hello, Need, Fed, Hint, Used, Released, Bye)
to_engine: Codec[ToEngine] = Codec(Welcome, NotWelcome, Filled, Recall, FillFailed, Limit, Hinting)
