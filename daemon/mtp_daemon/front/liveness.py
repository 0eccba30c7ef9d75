"""Judgements on a child, pure: is it hung, and may it be started once more?"""

from dataclasses import dataclass, field


@dataclass
class Vigil:
    """Watches one process's beats. Times are the front's running clock."""

    start_limit_s: float
    beat_limit_s: float
    progress_limit_s: float
    born: float
    heard: float | None = None
    progress: int = -1
    moved: float = field(default=0.0)
    busy: bool = False

    def word(self, now: float) -> None:
        """Any message at all came."""
        self.heard = now

    def beat(self, progress: int, busy: bool, now: float) -> None:
        """A busy process must move; an idle one has nothing to move."""
        self.heard = now
        if progress != self.progress or not busy or not self.busy:
            self.moved = now
        self.progress, self.busy = progress, busy

    def excuse(self, now: float) -> None:
        """It could not have moved until now, for want of the other process."""
        self.moved = now

    def verdict(self, now: float) -> str | None:
        """Why it must be killed, None when it need not."""
        if self.heard is None:
            if now - self.born > self.start_limit_s:
                return f"not a word within {self.start_limit_s:g} s of its start"
            return None
        if now - self.heard > self.beat_limit_s:
            return f"no beat for {self.beat_limit_s:g} s"
        if self.busy and now - self.moved > self.progress_limit_s:
            return f"busy without progress for {self.progress_limit_s:g} s"
        return None


@dataclass
class Restarts:
    """Back-off, and an end to it. `settled_s` of service make the next death the first in a row again.

    The back-off bounds how often a child is started, so the time it was in service is part of it: one that dies a few
    seconds after it was ready is started again at once.
    """

    limit: int
    first_s: float = 0.1
    longest_s: float = 5.0
    settled_s: float = 60.0
    in_a_row: int = 0
    total: int = 0

    def delay(self, lived_ready_s: float) -> float | None:
        """It died after so long in service: seconds to wait before the next start, None to give up."""
        if lived_ready_s >= self.settled_s:
            self.in_a_row = 0
        self.in_a_row += 1
        if self.in_a_row > self.limit:
            return None
        self.total += 1
        apart: float = min(self.longest_s, self.first_s * 2 ** (self.in_a_row - 1))
        return max(self.first_s, apart - lived_ready_s)
