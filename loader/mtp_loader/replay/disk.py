"""The machine of a replay: how fast it computes and reads, and when a read would be done."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Machine:
    """`bandwidth` in bytes a second, `compute_s` seconds of one layer of one forward."""

    bandwidth: float
    compute_s: float


@dataclass
class Timing:
    """Seconds of the decode phase. `bound_s` is the larger of compute and of reading what missed or was prefetched."""

    compute_s: float = 0.0
    stall_s: float = 0.0
    read_bytes: int = 0
    bandwidth: float = 1.0

    @property
    def total_s(self) -> float:
        return self.compute_s + self.stall_s

    @property
    def bound_s(self) -> float:
        return max(self.compute_s, self.read_bytes / self.bandwidth)


@dataclass
class Disk:
    """One read at a time; what is queued begins as soon as the disk is free."""

    machine: Machine
    sizes: Mapping[int, int]
    free_at: float = 0.0
    reading: int = -1  # the prefetched key that is being read, or was last
    queue: deque[tuple[int, float]] = field(default_factory=deque)
    done_at: dict[int, float] = field(default_factory=dict)

    def advance(self, now: float) -> None:
        """Begins every queued read that could begin before `now`."""
        while self.queue and max(self.free_at, self.queue[0][1]) < now:
            key, asked = self.queue.popleft()
            self.free_at = max(self.free_at, asked) + self.sizes[key >> 16] / self.machine.bandwidth
            self.done_at[key] = self.free_at
            self.reading = key

    def demand(self, layer: int, count: int, now: float) -> float:
        """When `count` experts of `layer` are read, ahead of everything queued."""
        if count:
            self.reading = -1
            self.free_at = max(self.free_at, now) + count * self.sizes[layer] / self.machine.bandwidth
        return self.free_at
