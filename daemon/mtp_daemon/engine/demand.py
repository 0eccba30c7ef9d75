"""What one wave waits for."""

from dataclasses import dataclass, field


@dataclass
class Demand:
    """Experts of one layer that a wave waits for."""

    layer: int
    missing: set[int]
    arrived: list[int] = field(default_factory=list)
    tickets: set[int] = field(default_factory=set)
    capacity: int = 0  # of the bank, when the demand was sized
    unfit: bool = False  # the bank became smaller: what is missing must be asked for in smaller waves

    @property
    def waits(self) -> bool:
        """Nothing has arrived that was not handed on, and something still may."""
        return bool(self.missing) and not self.arrived and not self.unfit

    def __str__(self) -> str:
        experts = ", ".join(map(str, sorted(self.missing)[:8]))
        return f"experts {experts} of layer {self.layer}"
