"""What an interrupted pack has done, so that the same command goes on instead of beginning again.

`DST.partial/` holds the files and `journal.jsonl`: its first line names the source and the settings, each further line
one finished part with its checksums. A torn last line is left out, and a part is believed only when its bytes still
have those checksums: power may have failed before they reached the disk.
"""

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mtp_loader.errors import BadRequest

JOURNAL = "journal.jsonl"


class Journal:
    """The journal of the pack that owns `directory`; the lock on it is held until the pack ends.

    A context manager. Entering creates the directory, or keeps what a former run with the same `purpose` left there.
    Raises BadRequest where another process packs to the same place.
    """

    def __init__(self, directory: Path, purpose: str) -> None:
        self._directory, self._purpose = directory, purpose
        self._fd = -1
        self.parts: dict[str, list[int]] = {}

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._directory / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise BadRequest(f"{self._directory}: another process is packing there") from None
        lines = self._lines()
        if lines and lines[0] == {"purpose": self._purpose}:
            self.parts = {y["part"]: y["crc32"] for y in lines[1:] if isinstance(y.get("crc32"), list)}
        self._rewrite()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def add(self, part: str, crc32: list[int]) -> None:
        """Record a finished part."""
        self.parts[part] = crc32
        os.write(self._fd, _line({"part": part, "crc32": crc32}))

    def forget(self, part: str) -> None:
        """Leave out a part whose bytes are not what they were; its next `add` counts."""
        self.parts.pop(part, None)

    def _lines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with open(self._directory / JOURNAL, encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    value = json.loads(text)
                except ValueError:
                    break  # the line that was being written when the run ended
                if not isinstance(value, dict):
                    break
                found.append(value)
        return found

    def _rewrite(self) -> None:
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        os.write(self._fd, _line({"purpose": self._purpose}))
        for part, crc32 in self.parts.items():
            os.write(self._fd, _line({"part": part, "crc32": crc32}))


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
