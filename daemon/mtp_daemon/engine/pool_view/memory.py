"""What a pool view needs of the C library: map a file at a chosen address, and private memory back over it."""

import ctypes
import mmap
import os
import sys

PAGE = mmap.PAGESIZE
MAP_FIXED = 0x10
MAP_PRIVATE = 0x02
MAP_ANONYMOUS = 0x1000 if sys.platform == "darwin" else 0x20
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]


def map_shared_over(address: int, nbytes: int, fd: int, offset: int) -> None:
    """Put the file's pages in place of our own at `address`. All three numbers are multiples of PAGE.

    Raises OSError.
    """
    _map(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, fd, offset)


def map_private_over(address: int, nbytes: int) -> None:
    """Put fresh private memory back at `address`. Raises OSError."""
    _map(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)


def _map(address: int, nbytes: int, protection: int, flags: int, fd: int, offset: int) -> None:
    if address % PAGE or nbytes % PAGE or offset % PAGE:
        raise ValueError(f"not page-aligned: address {address:#x}, {nbytes} bytes, offset {offset}")
    got = _libc.mmap(address, nbytes, protection, flags, fd, offset)
    if got == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"mmap of {nbytes} bytes over {address:#x}: {os.strerror(error)}")


def up(nbytes: int) -> int:
    """`nbytes` rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE
