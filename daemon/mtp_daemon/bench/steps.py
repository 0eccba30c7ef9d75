"""Progress of a measurement: a line a step on standard error, with the time so far and what is left."""

import sys
import time
from typing import TextIO


class Steps:
    """`total` steps of about the same length. On a terminal the line is redrawn in place."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._done = 0
        self._begun = time.monotonic()

    def begin(self, what: str) -> None:
        """The next step begins."""
        passed = time.monotonic() - self._begun
        left = f", {passed / self._done * (self._total - self._done):.0f} s left" if self._done else ""
        self._done += 1
        line = f"[{self._done}/{self._total}] {what} ({passed:.0f} s so far{left})"
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{line}")
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def end(self) -> None:
        """Nothing of it stays on a terminal."""
        if self._stream.isatty():
            self._stream.write("\r\x1b[K")
            self._stream.flush()
