"""Who is the daemon: the lock, whatever files lie about."""

import os
import tempfile
from pathlib import Path

import pytest

from mtp_client.connection import daemon_pid
from mtp_daemon.errors import AlreadyRunning, UserError
from mtp_daemon.front.run_lock import RunLock


def test_second_lock_names_the_first(tmp_path: Path) -> None:
    """The second is told the first one's pid; once the first is gone there is room again."""
    first = RunLock(tmp_path / "run")
    with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
        RunLock(tmp_path / "run")
    assert daemon_pid(tmp_path / "run") == os.getpid()
    first.close()
    assert daemon_pid(tmp_path / "run") is None
    RunLock(tmp_path / "run").close()


def test_leftovers_of_a_killed_daemon() -> None:
    """A stale pid file and stale sockets stop nobody and are removed."""
    with tempfile.TemporaryDirectory(prefix="mtpd-t-") as name:  # short: the sockets of a long name lie elsewhere
        run = Path(name)
        (run / "mtpd.lock").write_text("1")
        (run / "client.sock").touch()
        (run / "loader-3.sock").touch()
        assert daemon_pid(run) is None
        lock = RunLock(run)
        assert list(run.glob("*.sock")) == []
        lock.close()


def test_refused_directories(tmp_path: Path) -> None:
    """A link, a file and a directory open to others are each refused by name."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir(mode=0o770)
    os.chmod(tmp_path / "open", 0o770)
    for name in ("link", "file", "open"):
        with pytest.raises(UserError, match=str(tmp_path / name)):
            RunLock(tmp_path / name)


def test_directory_of_another_user(tmp_path: Path) -> None:
    """Somebody else's directory is refused: whoever owns it could read every prompt."""
    if os.getuid() != 0:
        pytest.skip("only root can make a directory of another user's")
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(UserError, match="belongs to user 12345"):
        RunLock(tmp_path / "theirs")
