"""What tells one checkpoint's bytes from another's of the same names and shapes."""

import hashlib
import os
from collections.abc import Iterable

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.store.safetensors import Header

_WINDOWS = 32
_WINDOW_BYTES = 4096


def fingerprint(config: bytes, headers: Iterable[Header]) -> str:
    """32 hex digits over the config and, of each file, its header, size, time of change and evenly spaced samples.

    Two trainings of one model differ nearly everywhere, so the samples tell them apart without reading all; a file
    edited in place is told by its time.
    """
    digest = hashlib.sha256(config)
    for header in headers:
        digest.update(header.path.name.encode())
        digest.update(header.raw)
        try:
            with open(header.path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size != header.nbytes:
                    raise DamagedCheckpoint(header.path, f"has {status.st_size} bytes but should have {header.nbytes}")
                digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
                step = max(status.st_size // _WINDOWS, 1)
                for offset in range(0, status.st_size, step):
                    digest.update(os.pread(file.fileno(), min(_WINDOW_BYTES, step), offset))
        except OSError as error:
            raise DamagedCheckpoint(header.path, f"cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()[:32]
