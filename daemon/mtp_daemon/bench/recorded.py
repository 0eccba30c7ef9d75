"""What a benchmark wants of recorded routing: each decode step's experts, and which are used most.

The only place of the daemon that reads recordings.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mtp_daemon.errors import UserError
from mtp_loader.replay.read import read_trace
from mtp_loader.replay.trace import DECODE

Step = dict[int, tuple[int, ...]]
"""One decoded token: the experts of each layer, in the router's order."""


@dataclass(frozen=True)
class Recorded:
    """`layers` in order; `experts` is the most that any of them has."""

    layers: tuple[int, ...]
    experts: int
    steps: tuple[Step, ...]

    def hottest(self, count: int) -> tuple[tuple[int, int], ...]:
        """The `count` (layer, expert) pairs that most decode steps used, most used first."""
        uses = Counter((layer, expert) for step in self.steps for layer, chosen in step.items() for expert in chosen)
        ranked = sorted(uses.items(), key=lambda item: (-item[1], item[0]))
        return tuple(pair for pair, _ in ranked[:count])


def read_recorded(path: Path) -> Recorded:
    """The decode phase of a recording, compact or CSV, token by token; layers that a step did not pass are absent.

    Raises UserError where nothing was decoded, and the loader's errors for a file that is no recording.
    """
    trace = read_trace(path)
    steps: list[Step] = []
    for forward in trace.forwards:
        if forward.phase == DECODE:
            tokens = max((len(rows) for _, rows in forward.rows), default=0)
            steps += [{layer: rows[i] for layer, rows in forward.rows if i < len(rows)} for i in range(tokens)]
    if not steps:
        raise UserError(f"{path} records no decode step")
    layers = sorted({layer for step in steps for layer in step})
    return Recorded(tuple(layers), max(trace.layers[layer].experts for layer in layers), tuple(steps))
