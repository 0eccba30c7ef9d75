"""Front and decode engine: start and cancel requests, follow them, and watch over the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mtp_protocol.client_messages import Reason, TokenLogprobs, Usage
from mtp_protocol.codec import Codec
from mtp_protocol.geometry import Geometry, PoolLayout
from mtp_protocol.sampling import Sampling


@dataclass(frozen=True)
class Start:
    """Answer a prompt. `delivered` are tokens already sent before a crash: they are fed one at a time after the
    prompt, never sent again, and the answer goes on after them.
    """

    request: bytes
    prompt: str | None
    prompt_ids: tuple[int, ...] | None
    raw: bool
    system: str | None
    max_tokens: int
    stop: tuple[str, ...]
    sampling: Sampling
    speculation: str | None = None
    depth: int | None = None
    delivered: tuple[int, ...] = ()


@dataclass(frozen=True)
class Cancel:
    request: bytes


@dataclass(frozen=True)
class Stop:
    """Leave within `deadline_s`."""

    deadline_s: float


@dataclass(frozen=True)
class Pool:
    """Map the region whose descriptor comes over the lifeline, marked with the same generation."""

    geometry: Geometry
    layout: PoolLayout


@dataclass(frozen=True)
class LoaderUp:
    """A loader with this epoch listens at `address`."""

    epoch: int
    address: str


@dataclass(frozen=True)
class LoaderDead:
    """The loader with this epoch is dead and reaped: drop it; what is resident stays readable."""

    epoch: int


@dataclass(frozen=True)
class Ready:
    """The model is loaded. `facts`: dense_bytes, kv_bytes_per_token, state_bytes, context, model_type, adapter,
    mtp (bool), mtp_why (text), chat_template (bool), backend ("cpu" or "metal"), …
    """

    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    request: bytes
    done: int
    total: int


@dataclass(frozen=True)
class Tokens:
    """A committed run: tokens number `seq`, … ; the front logs the whole run before it sends any of it."""

    request: bytes
    seq: int
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class Finished:
    request: bytes
    reason: Reason
    usage: Usage
    stats: Mapping[str, Any]


@dataclass(frozen=True)
class Failed:
    """A request failed (`request` set) or the engine cannot start or go on (None)."""

    request: bytes | None
    kind: Literal["bad_request", "too_long", "unsupported", "environment", "internal"]
    text: str


@dataclass(frozen=True)
class Beat:
    """From the engine's I/O thread, every second. `progress` counts what its MLX thread did; `busy` says whether it
    should be moving: a busy engine whose progress stands still for too long is hung.
    """

    progress: int
    busy: bool
    facts: Mapping[str, Any] = field(default_factory=dict)


ToEngine = Start | Cancel | Stop | Pool | LoaderUp | LoaderDead
FromEngine = Ready | Progress | Tokens | Finished | Failed | Beat

to_engine: Codec[ToEngine] = Codec(Start, Cancel, Stop, Pool, LoaderUp, LoaderDead)
from_engine: Codec[FromEngine] = Codec(Ready, Progress, Tokens, Finished, Failed, Beat)
