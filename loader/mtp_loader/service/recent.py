"""The routing of the last requests, kept in memory for a calibration: a bounded recording that nobody asked for.

All of its memory is taken, and touched, at the start. A list of entries would grow the process for hours until it meets
its bound, which looks like a leak to whoever watches a service that runs for weeks.
"""

from typing import BinaryIO

import numpy as np

from mtp_loader.replay.recording import header_of
from mtp_protocol.geometry import Geometry

LIMIT_BYTES = 4 << 20  # about 1,800 forwards of 48 layers with 10 experts each
LIMIT_FORWARDS = 4096  # a small model's are short: more would prove no more
_ROW = np.dtype([("came", np.float64), ("start", np.int64), ("size", np.int64)])


class RecentRouting:
    """Entries of a recording with the time each came, oldest first; the oldest go when there are too many.

    Positions and numbers of rows only rise; where they lie is what remains of a division. An entry lies in one piece.
    """

    def __init__(
        self,
        geometry: Geometry,
        model: str,
        limit_bytes: int = LIMIT_BYTES,
        limit_forwards: int = LIMIT_FORWARDS,
    ) -> None:
        self._header = header_of(geometry, model)
        self._ring = np.full(limit_bytes, 0xFF, dtype=np.uint8)
        self._rows = np.full(limit_forwards, -1, dtype=_ROW)
        self._first = self._next = 0
        self._end = 0  # position after the newest entry

    def add(self, entry: bytes, now: float) -> None:
        """One forward. One that is larger than all the room there is, is left out."""
        room = len(self._ring)
        if len(entry) > room:
            return
        if self._end % room + len(entry) > room:
            self._end += room - self._end % room
        start = self._end
        self._end += len(entry)
        while self._first < self._next and self._must_go(self._first):
            self._first += 1
        at = start % room
        self._ring[at : at + len(entry)] = np.frombuffer(entry, dtype=np.uint8)
        self._rows[self._next % len(self._rows)] = now, start, len(entry)
        self._next += 1

    def write(self, file: BinaryIO, since: float) -> None:
        """What came after `since`, as a recording. Raises OSError."""
        file.write(self._header)
        for number in range(self._first, self._next):
            came, start, size = self._rows[number % len(self._rows)]
            at = start % len(self._ring)
            if came > since:
                file.write(self._ring[at : at + size].tobytes())

    def _must_go(self, number: int) -> bool:
        """Whether a row is overwritten by the one that comes, in the table or in the bytes."""
        row = self._rows[number % len(self._rows)]
        return bool(self._next - number >= len(self._rows) or self._end - row["start"] > len(self._ring))
