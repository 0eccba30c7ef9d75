"""The checkpoint's files as the readers use them: kept open, past the page cache, opened again when that can help."""

import contextlib
import errno
import fcntl
import mmap
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from mtp_loader.errors import ReadFailed
from mtp_loader.pool.shim import Preadv

# One call never asks for more: macOS fails reads of 2 GiB and above with EINVAL.
MAX_READ_BYTES = 1 << 30
DIRECT_ALIGNMENTS = (512, 4096)
_EIO_RETRIES = 2


class AlignedBuffer:
    """A thread's page-aligned staging buffer; grows to what is asked for and stays."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None

    def take(self, nbytes: int) -> memoryview:
        """`nbytes` of it; valid until the next call."""
        if self._map is None or len(self._map) < nbytes:
            self._map = mmap.mmap(-1, max(nbytes, 1))
        return memoryview(self._map)[:nbytes]


class _Descriptors:
    """A file's descriptors: `cached` always; `direct` (Linux, O_DIRECT) with the alignment that it was seen to take."""

    def __init__(self, path: Path, direct: bool) -> None:
        self.cached = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.direct, self.alignment = -1, 1
        self.users, self.retired = 0, False
        self.status = os.fstat(self.cached)
        if direct and sys.platform == "darwin":
            fcntl.fcntl(self.cached, fcntl.F_NOCACHE, 1)
        elif direct and sys.platform == "linux":
            self._open_direct(path)

    def _open_direct(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # tmpfs and some network file systems have no O_DIRECT
            self.direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        probe = AlignedBuffer().take(2 * DIRECT_ALIGNMENTS[-1])
        for alignment in DIRECT_ALIGNMENTS if self.direct >= 0 else ():
            with contextlib.suppress(OSError):
                os.preadv(self.direct, [probe[alignment : 2 * alignment]], 0)
                self.alignment = alignment
                return
        if self.direct >= 0:
            os.close(self.direct)
            self.direct = -1

    def close(self) -> None:
        for fd in (self.cached, self.direct):
            if fd >= 0:
                os.close(fd)
        self.cached = self.direct = -1


class ExpertFile:
    """One file of experts. Any thread may read; descriptors that were replaced are closed by their last reader."""

    def __init__(self, path: Path, *, direct: bool, preadv: Preadv) -> None:
        self.path = path
        self.generation = 0  # rises when the path was opened again and is another file
        self._direct, self._preadv = direct, preadv
        self._lock = threading.Lock()
        self._open = _Descriptors(path, direct)
        self._size = self._open.status.st_size
        self._warned: tuple[int, ...] | None = None

    @property
    def alignment(self) -> int:
        """What addresses, lengths and offsets of a direct read must be multiples of; 1 where reads are cached."""
        return self._open.alignment if self._open.direct >= 0 else 1

    def read(self, offset: int, buffers: Sequence[memoryview], needed: int, *, aligned: bool) -> None:
        """Fills `buffers` from `offset`; what lies beyond the first `needed` bytes may be cut off by the file's end.

        `aligned`: offset, addresses and lengths are multiples of `alignment`, so that the page cache can be passed by.
        Raises ReadFailed, naming file and offset, after trying again where that can help: after EIO, and with the path
        opened anew when the file has gone or been replaced.
        """
        failure: tuple[int, str] | None = None  # not the error: its traceback would keep the buffers
        used: _Descriptors | None = None
        for attempt in range(_EIO_RETRIES + 2):
            # Another reader may have opened the path anew while this one read what was there before.
            if attempt and not self._worth_another(failure, attempt) and used is self._open:
                break
            try:
                with self._using() as opened:
                    used = opened
                    if self._read_once(opened, offset, buffers, aligned) >= needed:
                        return
                failure = None
            except OSError as error:
                failure = error.errno or 0, error.strerror or str(error)
        raise ReadFailed(self._reason(offset, needed, failure))

    def _read_once(self, opened: _Descriptors, offset: int, buffers: Sequence[memoryview], aligned: bool) -> int:
        done, total = 0, sum(b.nbytes for b in buffers)
        if opened.direct >= 0 and aligned:
            done = self._loop(opened.direct, offset, buffers, opened.alignment)
        if done < total:
            done += self._loop(opened.cached, offset + done, _after(buffers, done), 1)
            if self._direct and sys.platform == "linux":  # the pool is the cache
                os.posix_fadvise(opened.cached, offset, total, os.POSIX_FADV_DONTNEED)
        return done

    def _loop(self, fd: int, offset: int, buffers: Sequence[memoryview], alignment: int) -> int:
        """Reads until all is there, the file ends, or a short direct read leaves an offset that cannot go on."""
        done, left = 0, list(buffers)
        while left:
            part = _upto(left, MAX_READ_BYTES)
            n = self._preadv(fd, part, offset + done)
            done += n
            if n == 0 or n % alignment:
                break
            left = _after(left, n)
        return done

    def _worth_another(self, failure: tuple[int, str] | None, attempt: int) -> bool:
        """After EIO yes, a few times; then, and after anything else, if the path leads to a file worth reading."""
        if failure is not None and failure[0] in (errno.EIO, errno.EINTR, errno.EAGAIN) and attempt <= _EIO_RETRIES:
            return True
        return self.reopen(same_file_too=failure is not None)

    def reopen(self, *, same_file_too: bool = False) -> bool:
        """Opens the path again; true if it leads to another file of the same size, which is read from now on."""
        try:
            new = _Descriptors(self.path, self._direct)
        except OSError:
            return False
        with self._lock:
            old = self._open
            other = (new.status.st_dev, new.status.st_ino) != (old.status.st_dev, old.status.st_ino)
            if new.status.st_size != self._size or not (other or same_file_too):
                new.close()
                return False
            self._open, old.retired = new, True
            self.generation += other
            if not old.users:
                old.close()
            return True

    @contextlib.contextmanager
    def _using(self) -> Iterator[_Descriptors]:
        with self._lock:
            opened = self._open
            opened.users += 1
        try:
            yield opened
        finally:
            with self._lock:
                opened.users -= 1
                if opened.retired and not opened.users:
                    opened.close()

    def _reason(self, offset: int, needed: int, failure: tuple[int, str] | None) -> str:
        if failure is not None:
            return f"{self.path} at offset {offset}: {failure[1]}"
        with self._using() as opened:
            size = os.fstat(opened.cached).st_size
        return (
            f"{self.path} at offset {offset}: the file ends at {size} of {self._size}, {needed} bytes were to be read"
        )

    def change(self) -> str | None:
        """What has happened to the path since it was opened, as a line for the log; each thing is told once."""
        opened = self._open.status
        try:
            now = os.stat(self.path)
        except OSError as error:
            seen: tuple[int, ...] = (error.errno or 0,)
            text = f"cannot be found any more ({error.strerror})"
        else:
            seen = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)
            if seen == (opened.st_dev, opened.st_ino, opened.st_size, opened.st_mtime_ns):
                return None
            same = (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino)
            text = "was changed while in use" if same else "was replaced; the file that was opened is read on"
        if seen == self._warned:
            return None
        self._warned = seen
        return f"{self.path} {text}"

    def close(self) -> None:
        self._open.close()


def _upto(buffers: Sequence[memoryview], nbytes: int) -> list[memoryview]:
    part = []
    for buffer in buffers:
        if nbytes <= 0:
            break
        part.append(buffer[:nbytes])
        nbytes -= part[-1].nbytes
    return part


def _after(buffers: Sequence[memoryview], nbytes: int) -> list[memoryview]:
    rest = []
    for buffer in buffers:
        if nbytes >= buffer.nbytes:
            nbytes -= buffer.nbytes
        else:
            rest.append(buffer[nbytes:] if nbytes else buffer)
            nbytes = 0
    return rest
