"""The routing of the last requests, kept in memory for a calibration: a bounded recording that nobody asked for."""

from collections import deque
from typing import BinaryIO

from mtp_loader.replay.recording import header_of
from mtp_protocol.geometry import Geometry

LIMIT_BYTES = 4 << 20  # about 1,800 forwards of 48 layers with 10 experts each
LIMIT_FORWARDS = 4096  # a small model's are short: more would go on growing the process for hours and prove no more


class RecentRouting:
    """Entries of a recording with the time each came, oldest first; the oldest go when there are too many."""

    def __init__(
        self,
        geometry: Geometry,
        model: str,
        limit_bytes: int = LIMIT_BYTES,
        limit_forwards: int = LIMIT_FORWARDS,
    ) -> None:
        self._header = header_of(geometry, model)
        self._limit_bytes, self._limit_forwards = limit_bytes, limit_forwards
        self._entries: deque[tuple[float, bytes]] = deque()
        self._bytes = 0

    def add(self, entry: bytes, now: float) -> None:
        self._entries.append((now, entry))
        self._bytes += len(entry)
        while self._bytes > self._limit_bytes or len(self._entries) > self._limit_forwards:
            self._bytes -= len(self._entries.popleft()[1])

    def write(self, file: BinaryIO, since: float) -> None:
        """What came after `since`, as a recording. Raises OSError."""
        file.write(self._header)
        file.writelines(entry for came, entry in self._entries if came > since)
