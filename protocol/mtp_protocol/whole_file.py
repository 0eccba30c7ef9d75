"""A small file that is there whole or not at all, whoever is killed while it is written."""

import os
from glob import escape
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Writes beside `path` and renames: a reader sees the old file or the new one. Makes the directory.

    What writers left that were killed in the middle is removed. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{escape(path.name)}.*.tmp"):
        if not _lives(left.name.split(".")[-2]):
            left.unlink(missing_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    return True
