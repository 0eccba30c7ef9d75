"""How best to read a disk: what `mtp-bench io` found out, kept for every service whose settings leave it to us.

One small JSON file for all disks, in the state directory; a file system is known by its id and size, so a choice does
not outlive the disk it was made on. Replaced whole, by rename: a reader never sees half of it.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtp_protocol.whole_file import write_whole

NAME = "disks.json"
_MOST_DISKS = 64
_THREADS = range(1, 65)


@dataclass(frozen=True)
class DiskChoice:
    """`readers` threads; `direct`: past the page cache. `gb_per_s` is what the loader got that way."""

    readers: int
    direct: bool
    gb_per_s: float


def file_system_of(path: Path) -> str:
    """The name of the file system that `path` lies on. Raises OSError."""
    found = os.statvfs(path)
    return f"{found.f_fsid:x}-{found.f_blocks * found.f_frsize}"


def recall(state_directory: Path | None, path: Path) -> DiskChoice | None:
    """What was found for the file system of `path`; None where nothing was, or nothing that can be used."""
    if state_directory is None:
        return None
    try:
        kept = _read(state_directory / NAME)[file_system_of(path)]
        choice = DiskChoice(kept["readers"], kept["direct"], float(kept["gb_per_s"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    usable = type(choice.readers) is int and choice.readers in _THREADS and type(choice.direct) is bool
    return choice if usable else None


def remember(state_directory: Path, path: Path, choice: DiskChoice) -> Path:
    """Keep it, in place of what was found before; the file it is kept in. Raises OSError."""
    file = state_directory / NAME
    try:
        known = _read(file)
    except (OSError, ValueError):
        known = {}
    disk = file_system_of(path)
    known.pop(disk, None)
    known[disk] = asdict(choice)
    newest = dict(list(known.items())[-_MOST_DISKS:])
    write_whole(file, (json.dumps(newest, indent=1) + "\n").encode())
    return file


def _read(file: Path) -> dict[str, Any]:
    known = json.loads(file.read_text())
    if not isinstance(known, dict):
        raise ValueError(f"{file} holds no object")
    return known
