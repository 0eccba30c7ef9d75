"""The pool's region reaches a child, survives it and leaves nothing behind; a gone front shows as an end."""

import mmap
import os
import socket
import subprocess
import sys
from pathlib import Path

from mtp_protocol.lifeline import create_region, receive_region, send_region

_CHILD = """
import mmap, socket, sys
from mtp_protocol.lifeline import receive_region
generation, nbytes, fd = receive_region(socket.socket(fileno=int(sys.argv[1])))
with mmap.mmap(fd, nbytes) as pool:
    pool[:5] = b"hello"
print(generation, nbytes)
"""


def test_a_child_writes_into_the_region_and_its_exit_leaves_it_alive() -> None:
    ours, theirs = socket.socketpair()
    fd = create_region(1 << 16)
    send_region(ours, 7, 1 << 16, fd)
    with theirs:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    assert done.stdout.split() == ["7", str(1 << 16)]
    with mmap.mmap(fd, 1 << 16) as pool:
        assert pool[:5] == b"hello"
    os.close(fd)
    ours.close()


def test_the_front_s_end_reads_as_none() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    assert receive_region(theirs) is None
    theirs.close()


def test_the_region_has_no_name_in_the_file_system() -> None:
    before = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else set()
    fd = create_region(4096)
    after = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else set()
    os.close(fd)
    assert before == after
