"""Files that are there whole or not at all, whoever is killed while one is written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtp_protocol.whole_file import write_whole


def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    """State of a service that runs for weeks must not gather leftovers; nor may two services undo each other."""
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    file = tmp_path / "made" / "state.npz"
    write_whole(file, b"1")
    left = [file.with_name(f"state.npz.{pid}.tmp") for pid in (str(gone.pid), str(os.getppid()), "nobody")]
    for path in (*left, file.with_name("another.npz.1.tmp")):
        path.write_bytes(b"half")
    write_whole(file, b"2")
    assert file.read_bytes() == b"2"
    assert sorted(p.name for p in file.parent.iterdir()) == sorted([left[1].name, "another.npz.1.tmp", "state.npz"])


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs the new content, not the old, and leaves no half."""
    file = tmp_path / "state"
    write_whole(file, b"old")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(file, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["state"] and file.read_bytes() == b"old"
