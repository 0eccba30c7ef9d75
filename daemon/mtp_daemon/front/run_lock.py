"""Who is the daemon of a run directory: whoever holds the lock on its file. A socket is no lock, nor is a pid file."""

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path

from mtp_daemon.errors import AlreadyRunning, EnvironmentFailure, UserError
from mtp_protocol.run_directory import lock_path, socket_directory

# A client's look at the lock takes it for some microseconds; that must not look like a second daemon.
_PATIENCE_S = 0.3


class RunLock:
    """Holds the run directory until closed, or until the process is gone, however it died."""

    def __init__(self, run_directory: Path) -> None:
        """Raises AlreadyRunning, or UserError for a directory that is not ours alone."""
        self.run_directory = Path(os.path.abspath(run_directory))
        self.sockets = socket_directory(self.run_directory)
        for directory in dict.fromkeys((self.run_directory, self.sockets)):
            _make_private(directory)
        path = lock_path(self.run_directory)
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise EnvironmentFailure(f"cannot open {path}: {error.strerror}") from error
        self._acquire()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        self.remove_sockets()

    def _acquire(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    text = os.pread(self._fd, 32, 0)
                    os.close(self._fd)
                    raise AlreadyRunning(int(text) if text.isdigit() else None, str(self.run_directory)) from None
                time.sleep(0.02)

    def remove_sockets(self) -> None:
        """Those of an earlier daemon that was killed, or our own at the end; only while the lock is held."""
        for path in self.sockets.glob("*.sock"):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def close(self) -> None:
        self.remove_sockets()
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(directory)
    except OSError as error:
        raise UserError(f"cannot use the run directory {directory}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise UserError(f"the run directory {directory} is a link or no directory: give --run-dir another one")
    if status.st_uid != os.getuid():
        raise UserError(f"the run directory {directory} belongs to user {status.st_uid}, not to us: give another one")
    if status.st_mode & 0o077:
        raise UserError(
            f"the run directory {directory} is open to others (mode {stat.S_IMODE(status.st_mode):o}): "
            f"chmod 700 it or give another one"
        )
