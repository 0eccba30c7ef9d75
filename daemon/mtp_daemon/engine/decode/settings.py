"""How one request is decoded, validated once."""

from dataclasses import dataclass
from typing import Literal, get_args

from mtp_daemon.engine.errors import RequestRefused

Way = Literal["off", "chain", "adaptive", "rescue", "tree", "adaptive+rescue"]
Verify = Literal["auto", "batch", "step"]

WAYS: tuple[str, ...] = get_args(Way)
MAX_DEPTH = 32
MAX_WIDTH = 8


@dataclass(frozen=True)
class DecodeSettings:
    """Raises RequestRefused, naming the setting, for a value outside its range.

    `speculation` is the way to draft and `depth` the most tokens a round drafts. `verify` (the setting
    verify_mode): "batch" in one forward, "step" position by position, "auto" batch wherever that is exact. `chunk`:
    prompt tokens a prefill forward. `tau`: adaptive ways stop where the head's largest probability is below it.
    `width`: paths of a tree.
    `probe`: also count how often the true token is in the head's top 1, 2 and 3 (costs a read a round).
    """

    speculation: Way = "chain"
    depth: int = 2
    verify: Verify = "auto"
    chunk: int = 512
    tau: float = 0.4
    width: int = 3
    probe: bool = False

    def __post_init__(self) -> None:
        if self.speculation not in WAYS:
            raise RequestRefused(
                f"speculation must be one of {', '.join(WAYS)}, not {self.speculation!r}", "bad_request"
            )
        if self.verify not in get_args(Verify):
            raise RequestRefused(f"verify_mode must be auto, batch or step, not {self.verify!r}", "bad_request")
        _within("depth", self.depth, 0, MAX_DEPTH)
        _within("chunk", self.chunk, 1, 1 << 20)
        _within("tau", self.tau, 0.0, 1.0)
        _within("width", self.width, 1, MAX_WIDTH)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise RequestRefused(f"{name} must lie between {low} and {high}, not {value}", "bad_request")
