"""CURVE keys on disk, in the form ZeroMQ's own tools write: `NAME.key` is public, `NAME.key_secret` holds both halves.

A key is 40 characters of Z85. Service and client read them here and nowhere else. A file with a secret must be the
user's alone.
"""

import os
import re
import stat
from pathlib import Path

PUBLIC_SUFFIX, SECRET_SUFFIX = ".key", ".key_secret"
_MAX_FILE_BYTES = 16 << 10
_LINE = re.compile(r'^\s*(public-key|secret-key)\s*=\s*"([0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40})"\s*$')


class KeyFileError(Exception):
    """A key file that cannot be used; the text names it and says why."""


def read_public(path: Path) -> bytes:
    """The public key in either kind of file; raises KeyFileError."""
    keys = _read(path, private=False)
    if "public-key" not in keys:
        raise KeyFileError(f"{path} holds no public key")
    return keys["public-key"]


def read_pair(path: Path) -> tuple[bytes, bytes]:
    """`(public, secret)`; raises KeyFileError, also for a file that others may read."""
    keys = _read(path, private=True)
    if set(keys) != {"public-key", "secret-key"}:
        raise KeyFileError(f"{path} is no secret key: give the file that ends in {SECRET_SUFFIX}")
    return keys["public-key"], keys["secret-key"]


def write_key(path: Path, public: bytes, secret: bytes | None = None) -> None:
    """A new file, mode 0600 from its first moment. Raises KeyFileError when it is there already or cannot be made."""
    text = "metadata\ncurve\n" + f'    public-key = "{public.decode()}"\n'
    text += f'    secret-key = "{secret.decode()}"\n' if secret is not None else ""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "w", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        raise KeyFileError(f"cannot write {path}: {error.strerror}") from error


def _read(path: Path, *, private: bool) -> dict[str, bytes]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(f"{path} is no file")
            text = file.read(_MAX_FILE_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise KeyFileError(f"cannot read the key {path}: {error.strerror}") from error
    if private and (status.st_uid != os.getuid() or status.st_mode & 0o077):
        raise KeyFileError(f"{path} holds a secret and is open to others: chmod 600 it")
    return {m[1]: m[2].encode() for line in text.splitlines() if (m := _LINE.match(line))}
