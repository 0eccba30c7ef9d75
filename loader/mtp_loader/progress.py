"""A progress line on standard error. tqdm would do, but comes only by way of another package and says no more."""

import sys
import time
from typing import TextIO

_EVERY_S = 0.1


class Bar:
    """Counts bytes of one task: a bar, the rate and the time left, redrawn in place on a terminal.

    Elsewhere (a log, a pipe) one line at the start and one at the end are written.
    """

    def __init__(self, what: str, total: int, stream: TextIO | None = None) -> None:
        self._what, self._total = what, max(total, 1)
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._begun = self._drawn = time.monotonic()
        self._done = self._skipped = 0
        if not self._terminal:
            print(f"{what}: {size_text(total)}", file=self._stream)

    def add(self, nbytes: int, *, skipped: bool = False) -> None:
        """`nbytes` more are done; `skipped` ones were done before and do not count in the rate."""
        self._done += nbytes
        self._skipped += nbytes if skipped else 0
        now = time.monotonic()
        if self._terminal and (now - self._drawn > _EVERY_S or self._done >= self._total):
            self._drawn = now
            self._stream.write(f"\r\x1b[K{self._line(now)}")
            self._stream.flush()

    def close(self) -> None:
        """End the line; also after an error."""
        now = time.monotonic()
        end = "\n"
        start = "\r\x1b[K" if self._terminal else ""
        self._stream.write(f"{start}{self._line(now)}{end}")
        self._stream.flush()

    def _line(self, now: float) -> str:
        share = min(self._done / self._total, 1.0)
        rate = (self._done - self._skipped) / max(now - self._begun, 1e-6)
        left = (self._total - self._done) / rate if rate else 0.0
        filled = "█" * round(share * 24)
        ending = f", {left:.0f} s left" if 0 < share < 1 else ""
        return (
            f"{self._what} {filled:·<24} {share:4.0%} {size_text(self._done)} of {size_text(self._total)}, "
            f"{size_text(int(rate))}/s{ending}"
        )


def size_text(nbytes: int) -> str:
    """Bytes for a person: 1.8 MB, 45.3 GB (powers of ten, as disks are sold)."""
    value, units = float(nbytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"
