"""Figures over time: what each process holds, how fast answers come, how often an expert was there."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean
from typing import Any

import psutil

# Growth that a long calm may show without being called a leak: rows of tables, an allocator's last page.
LEAK_BYTES = 3 << 20
LEAST_CALM_S = 300.0


@dataclass
class Process:
    """One process's life: at each time its resident bytes; descriptors and threads whenever all was idle."""

    role: str
    pid: int
    times: list[float] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    idle: list[tuple[float, int, int]] = field(default_factory=list)


@dataclass
class Samples:
    """Owner of everything measured. Times are seconds since the soak began."""

    processes: dict[int, Process] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    tok_per_s: list[float] = field(default_factory=list)
    hit_rate: list[float | None] = field(default_factory=list)
    stall: list[float | None] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    _before: tuple[float, int] = (0.0, 0)
    _answers: list[dict[str, Any]] = field(default_factory=list)

    def answered(self, stats: dict[str, Any]) -> None:
        """An answer's own figures, for the next sample."""
        if stats.get("total_s"):
            self._answers.append(stats)

    def take(self, now: float, pids: dict[str, int], tokens: int) -> None:
        """One sample; `tokens` is the sum of all that clients have got."""
        for role, pid in pids.items():
            process = self.processes.setdefault(pid, Process(role, pid))
            try:
                rss = psutil.Process(pid).memory_info().rss
            except psutil.NoSuchProcess:
                continue
            process.times.append(now)
            process.rss.append(rss)
        since, before = self._before
        self.times.append(now)
        self.tok_per_s.append((tokens - before) / max(1e-6, now - since))
        asked = sum(a["hits"] + a["misses"] for a in self._answers)
        total_s = sum(a["total_s"] for a in self._answers)
        self.hit_rate.append(sum(a["hits"] for a in self._answers) / asked if asked else None)
        self.stall.append(sum(a["stall_s"] for a in self._answers) / total_s if total_s else None)
        self._before = now, tokens
        self._answers.clear()

    def take_idle(self, now: float, pids: dict[str, int]) -> None:
        """Descriptors and threads while nothing is asked."""
        for role, pid in pids.items():
            process = psutil.Process(pid)
            lived = self.processes.setdefault(pid, Process(role, pid))
            lived.idle.append((now, process.num_fds(), process.num_threads()))


@dataclass(frozen=True)
class Growth:
    """A process's memory over the calm: bytes an hour with the standard error, and the whole change."""

    role: str
    seconds: float
    rss: int
    per_hour: float
    error_per_hour: float
    change: float

    @property
    def leaks(self) -> bool:
        """Rising beyond chance, by more than any table may, over long enough to tell."""
        certain = self.per_hour > 3 * self.error_per_hour
        return self.seconds >= LEAST_CALM_S and certain and self.change > LEAK_BYTES


def growth(process: Process, since: float) -> Growth | None:
    """Least squares over the samples from `since` on; None where there are too few."""
    points = [(t, r) for t, r in zip(process.times, process.rss, strict=True) if t >= since]
    if len(points) < 8:
        return None
    times, sizes = [t for t, _ in points], [float(r) for _, r in points]
    middle, level = mean(times), mean(sizes)
    spread = sum((t - middle) ** 2 for t in times)
    slope = sum((t - middle) * (r - level) for t, r in points) / spread
    left = [r - level - slope * (t - middle) for t, r in points]
    # Neighbouring samples are not independent: the error is widened by their correlation.
    variance = sum(x * x for x in left) / (len(left) - 2)
    together = sum(a * b for a, b in pairwise(left)) / max(1e-9, sum(x * x for x in left))
    wider = (1 + min(0.98, max(0.0, together))) / (1 - min(0.98, max(0.0, together)))
    error = (variance / spread * wider) ** 0.5
    quarter = max(1, len(sizes) // 4)
    change = mean(sizes[-quarter:]) - mean(sizes[:quarter])
    seconds = times[-1] - times[0]
    return Growth(process.role, seconds, int(sizes[-1]), 3600 * slope, 3600 * error, change)


def unsteady(process: Process) -> str | None:
    """What of its descriptors or threads rose: more in all the last quarter of its life than ever in the first half."""
    seen = process.idle[1:]  # the first comes before everything was used once
    if len(seen) < 4:
        return None
    half, last = len(seen) // 2, max(2, len(seen) // 4)
    for name, column in (("descriptors", 1), ("threads", 2)):
        early, late = _most(seen[:half], column), min(row[column] for row in seen[-last:])
        if late > early:
            return f"the {process.role} had at most {early} {name}, later never less than {late}"
    return None


def seen_idle(process: Process) -> str:
    """How many descriptors and threads it had, least to most, whenever all was idle."""
    ranges = []
    for name, column in (("descriptors", 1), ("threads", 2)):
        counts = sorted(row[column] for row in process.idle) or [0]
        ranges.append(f"{counts[0]} to {counts[-1]} {name}")
    return ", ".join(ranges)


def _most(rows: Sequence[tuple[float, int, int]], column: int) -> int:
    return int(max(row[column] for row in rows))


def lived_longest(processes: Iterable[Process]) -> dict[str, Process]:
    """Of each role the process with the most samples."""
    by_role: dict[str, list[Process]] = defaultdict(list)
    for process in processes:
        by_role[process.role].append(process)
    return {role: max(lives, key=lambda p: len(p.times)) for role, lives in by_role.items()}
