"""How one request is decoded, validated once."""

from dataclasses import dataclass
from typing import Literal, get_args

from mtp_protocol.ranges import within

Way = Literal["off", "chain", "adaptive", "rescue", "tree", "adaptive+rescue"]
Verify = Literal["auto", "batch", "step"]

WAYS: tuple[str, ...] = get_args(Way)
MAX_DEPTH = 32
MAX_WIDTH = 8


@dataclass(frozen=True)
class DecodeSettings:
    """Raises ValueError, naming the setting, for a value outside its range.

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
            raise ValueError(f"speculation must be one of {', '.join(WAYS)}, not {self.speculation!r}")
        if self.verify not in get_args(Verify):
            raise ValueError(f"verify_mode must be auto, batch or step, not {self.verify!r}")
        within("depth", self.depth, 0, MAX_DEPTH)
        within("chunk", self.chunk, 1, 1 << 20)
        within("tau", self.tau, 0.0, 1.0)
        within("width", self.width, 1, MAX_WIDTH)
