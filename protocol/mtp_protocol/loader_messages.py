"""Front and loader: the pool, the engine's life and death, statistics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mtp_protocol.codec import Codec
from mtp_protocol.geometry import Geometry as ModelGeometry
from mtp_protocol.geometry import PoolLayout


@dataclass(frozen=True)
class Pool:
    """Map the region whose descriptor comes over the lifeline, marked with the same generation."""

    layout: PoolLayout


@dataclass(frozen=True)
class EngineUp:
    epoch: int
    pid: int


@dataclass(frozen=True)
class EngineDead:
    """The engine with this epoch is dead and reaped: every slot it was told of is its no more."""

    epoch: int


@dataclass(frozen=True)
class Pin:
    ref: int
    experts: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Calibrate:
    """Prove pins on the routing of the last `last_s` seconds (None: all remembered), and hold those that pay."""

    ref: int
    last_s: float | None
    shares: tuple[float, ...]


@dataclass(frozen=True)
class CalibrateStop:
    """Nobody waits for this calibration any more: no answer, and no pin is changed."""

    ref: int


@dataclass(frozen=True)
class Resize:
    """Live resize within the region (Linux): slots of each bank, in bank order, that may be used from now on."""

    ref: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class StatsRequest:
    ref: int


@dataclass(frozen=True)
class Stop:
    deadline_s: float


@dataclass(frozen=True)
class Geometry:
    """The loader's first word: what the checkpoint needs, so that the front can size the pool."""

    geometry: ModelGeometry


@dataclass(frozen=True)
class Ready:
    """Sockets are bound at `address` and the pool is mapped."""

    address: str


@dataclass(frozen=True)
class Stats:
    ref: int
    stats: Mapping[str, Any]


@dataclass(frozen=True)
class Resized:
    ref: int
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Pinned:
    ref: int
    pinned: int


@dataclass(frozen=True)
class Calibrated:
    """`result`: whether the pins pay, by how much and on what; how many are `pinned` now."""

    ref: int
    result: Mapping[str, Any]


@dataclass(frozen=True)
class Beat:
    """Every second. `facts` is a small live summary: hits, misses, bytes_read, resident slots, warm share, …"""

    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """The loader cannot start or go on; `text` says what to do."""

    kind: Literal["bad_request", "environment", "internal"]
    text: str
    ref: int | None = None


ToLoader = Pool | EngineUp | EngineDead | Pin | Calibrate | CalibrateStop | Resize | StatsRequest | Stop
FromLoader = Geometry | Ready | Stats | Resized | Pinned | Calibrated | Beat | Failed

to_loader: Codec[ToLoader] = Codec(
    Pool, EngineUp, EngineDead, Pin, Calibrate, CalibrateStop, Resize, StatsRequest, Stop
)
from_loader: Codec[FromLoader] = Codec(Geometry, Ready, Stats, Resized, Pinned, Calibrated, Beat, Failed)
