"""Are a packed store's whole files what the packer wrote? Experts are not looked at: each is checked as it is read."""

from collections.abc import Callable, Iterator
from pathlib import Path

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.store.checksum import checksum_of
from mtp_loader.store.index import PackedIndex, is_packed, read_index


def damaged_files(index: PackedIndex, progress: Callable[[int], None] | None = None) -> Iterator[Path]:
    """Files whose checksum is not the index's: dense weights, the head's, config, tokenizer."""
    for entry in index.files:
        if entry.crc32 is not None and checksum_of(index.path / entry.name, progress) != entry.crc32:
            yield index.path / entry.name


def check_whole_files(path: Path, progress: Callable[[int], None] | None = None) -> None:
    """Raises DamagedCheckpoint naming the first damaged file. A plain checkpoint records no checksums: nothing to do.

    `progress` gets the bytes read since it was last called. One sequential pass, over what is about to be loaded.
    """
    if not is_packed(path):
        return
    for file in damaged_files(read_index(path), progress):
        raise DamagedCheckpoint(file, "its checksum is wrong: pack the model again, or bring the file back")
