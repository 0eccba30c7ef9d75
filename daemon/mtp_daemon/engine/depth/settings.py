"""The knobs of the depth controllers, validated once, and the choice of one by name."""

from dataclasses import dataclass

from mtp_daemon.engine.depth.constant import Constant
from mtp_daemon.engine.depth.cost import CostController
from mtp_daemon.engine.depth.heuristic import Heuristic
from mtp_daemon.engine.depth.interface import DepthController
from mtp_protocol.ranges import within

CONTROLLERS = ("cost", "heuristic", "constant")
MAX_DEPTH = 32
# What a head of this family is known to reach at its first position, before the first round was seen.
FAMILY_ACCEPTANCE = {"qwen3_next": 0.75, "qwen3_5_moe": 0.75, "qwen3_5_moe_text": 0.75}


@dataclass(frozen=True)
class DepthSettings:
    """Raises ValueError, naming the knob, for a value outside its range.

    `controller`: cost | heuristic | constant. `depth`: the constant depth, and where the others start. `max_depth`:
    the most they draft. `half_life`: rounds after which an observation counts half. `probe_share`: the share of time
    `cost` may spend on depths that it does not believe in. `acceptance`: what it believes of the first position
    before it saw any; None: the model family's.
    """

    controller: str = "cost"
    depth: int = 2
    max_depth: int = 4
    half_life: float = 36.0
    probe_share: float = 0.012
    acceptance: float | None = None

    def __post_init__(self) -> None:
        if self.controller not in CONTROLLERS:
            raise ValueError(f"depth controller must be one of {', '.join(CONTROLLERS)}, not {self.controller!r}")
        within("depth", self.depth, 0, MAX_DEPTH)
        within("max_depth", self.max_depth, 0, MAX_DEPTH)
        within("depth half_life", self.half_life, 1.0, 10_000.0)
        within("probe_share", self.probe_share, 0.0, 0.5)
        if self.acceptance is not None:
            within("acceptance", self.acceptance, 0.0, 1.0)


def make_controller(settings: DepthSettings, model_type: str = "") -> DepthController:
    """The controller that `settings` name, for a model of family `model_type`."""
    if settings.controller == "constant":
        return Constant(settings.depth)
    if settings.controller == "heuristic":
        return Heuristic(settings.depth, settings.max_depth)
    acceptance = settings.acceptance if settings.acceptance is not None else FAMILY_ACCEPTANCE.get(model_type, 0.6)
    return CostController(
        initial=settings.depth,
        maximum=settings.max_depth,
        half_life=settings.half_life,
        probe_share=settings.probe_share,
        acceptance=acceptance,
    )
