"""A child's output: kept in a rotated file for people, its last lines in memory for status and error messages."""

import os
from collections import deque
from pathlib import Path

from mtp_daemon.errors import UserError

_MAX_FILE_BYTES = 1 << 20
_OLD_FILES = 2
_LINES = 50
_MAX_LINE_BYTES = 2000


def logs_in(directory: Path) -> Path:
    """`directory`, where logs can be kept now. Raises UserError; a disk that fills up later costs the file only."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"log_dir {directory}: {error.strerror}; choose another directory") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UserError(f"log_dir {directory} is not writable; choose another directory")
    return directory


class ChildLog:
    """One role's log through all its restarts. A full disk costs the file, never the service."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._size = 0
        self._partial = b""
        self.lines: deque[str] = deque(maxlen=_LINES)

    @property
    def last_error(self) -> str:
        """The last line that looks like one: a traceback's or the last that is no INFO; empty when there is none."""
        lines = [line for line in self.lines if not line.startswith("INFO ")]
        for line in reversed(lines):
            if "error" in line.lower():
                return line
        return lines[-1] if lines else ""

    def begin(self, title: str) -> None:
        """A new process writes from here on."""
        self.lines.clear()
        self._partial = b""
        self._write(f"--- {title}\n".encode())

    def feed(self, data: bytes) -> None:
        self._write(data)
        *whole, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-_MAX_LINE_BYTES:]
        self.lines.extend(line[:_MAX_LINE_BYTES].decode(errors="replace").rstrip() for line in whole if line.strip())

    def end(self) -> None:
        """The process is gone: its unfinished line is its last."""
        if self._partial.strip():
            self.lines.append(self._partial.decode(errors="replace").rstrip())
        self._partial = b""

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, data: bytes) -> None:
        try:
            if self._fd is None:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._size = os.fstat(self._fd).st_size
            if self._size > _MAX_FILE_BYTES:
                self._rotate()
            self._size += os.write(self._fd, data)
        except OSError:
            # No room, or no right, to keep a log: the lines in memory remain, and the next write tries again.
            self.close()

    def _rotate(self) -> None:
        for age in range(_OLD_FILES, 0, -1):
            older = self._path.with_suffix(f".log.{age}")
            newer = self._path if age == 1 else self._path.with_suffix(f".log.{age - 1}")
            if newer.exists():
                os.replace(newer, older)
        if self._fd is not None:
            os.close(self._fd)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._size = 0
