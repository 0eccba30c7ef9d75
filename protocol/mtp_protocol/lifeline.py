"""The socket pair between the front and each child: the pool's descriptor travels on it, and its end means death.

The front holds one end for as long as it lives and sends nothing on it but region descriptors. A child that reads the
end of the stream knows that the front is gone, however it died, and leaves at once. Works alike on Linux and macOS,
where neither a parent-death signal nor a pidfd exists.
"""

import ctypes
import os
import socket
import sys
from multiprocessing import shared_memory
from struct import Struct

_HEADER = Struct("<QQ")


def create_region(nbytes: int) -> int:
    """An anonymous shared-memory descriptor of `nbytes`, inheritable by nobody; it leaks nothing, whoever dies.

    Raises OSError when the system cannot give that much.
    """
    if sys.platform == "linux":
        fd = os.memfd_create("mtpd-pool", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, nbytes)
        except OSError:
            os.close(fd)
            raise
        return fd
    # macOS has no memfd. The name lives only between these lines: SharedMemory tracks and unlinks it, we keep a
    # duplicate of its descriptor.
    segment = shared_memory.SharedMemory(create=True, size=nbytes)
    fd = os.dup(segment._fd)
    segment.close()
    segment.unlink()
    return fd


def send_region(lifeline: socket.socket, generation: int, nbytes: int, fd: int) -> None:
    """Front: hand a region's descriptor to a child."""
    socket.send_fds(lifeline, [_HEADER.pack(generation, nbytes)], [fd])


def receive_region(lifeline: socket.socket) -> tuple[int, int, int] | None:
    """Child: wait for `(generation, nbytes, fd)`; None when the front is gone.

    Raises OSError (TimeoutError with a timeout set on the socket) as the socket does.
    """
    data, fds, _flags, _address = socket.recv_fds(lifeline, _HEADER.size, 1)
    if not data:
        return None
    if len(data) != _HEADER.size or len(fds) != 1:
        raise OSError("the lifeline carried something that is not a region")
    generation, nbytes = _HEADER.unpack(data)
    return generation, nbytes, fds[0]


def set_parent_death_signal() -> None:
    """Child, Linux: also die by SIGKILL with the front, should the lifeline's reader be stuck in a system call."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0)
