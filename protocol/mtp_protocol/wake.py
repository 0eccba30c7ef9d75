"""A descriptor that one thread polls and any other, or a signal, makes readable."""

import contextlib
import os


class Wake:
    """Owned by the thread that polls it; the others only call it."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def fileno(self) -> int:
        """What to poll."""
        return self._read_fd

    @property
    def write_fd(self) -> int:
        """For `signal.set_wakeup_fd`."""
        return self._write_fd

    def __call__(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is readable already
            os.write(self._write_fd, b"!")

    def clear(self) -> None:
        """Forget every call so far."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_fd, 4096):
                continue

    def close(self) -> None:
        """When nobody calls any more."""
        os.close(self._read_fd)
        os.close(self._write_fd)
