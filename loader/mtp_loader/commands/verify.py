"""Read a packed store and check every checksum; say which file, layer and expert is wrong.

A plain checkpoint records no checksums: there the headers, sizes and shapes of every file are checked.
"""

import argparse
import os
import sys
import zlib
from collections.abc import Callable, Iterator

from mtp_loader.progress import Bar, size_text
from mtp_loader.store import find_head, open_source, resolve_model
from mtp_loader.store.index import PackedIndex, is_packed, read_index
from mtp_loader.store.whole_files import damaged_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `mtp_loader.cli.Command`."""
    parser.add_argument("model", metavar="MODEL", help="a directory, or a Hugging Face id in the local cache")


def run(args: argparse.Namespace) -> int:
    """See `mtp_loader.cli.Command`."""
    path = resolve_model(args.model)
    if not is_packed(path):
        source = open_source(path, widen=False)
        find_head(path)
        print(f"{path}: headers, sizes and shapes are right ({len(source.files)} files); it records no checksums")
        return 0
    index = read_index(path)
    total = sum(f.nbytes for f in index.files)
    bar = Bar("verifying", total)
    wrong = []
    try:
        for fault in faults(index, bar.add):
            wrong.append(fault)
    finally:
        bar.close()
    for fault in wrong:
        print(fault, file=sys.stderr)
    if wrong:
        print(f"{path}: {len(wrong)} part(s) damaged; pack the model again", file=sys.stderr)
        return 1
    print(f"{path}: every checksum is right ({size_text(total)})")
    return 0


def faults(index: PackedIndex, progress: Callable[[int], None]) -> Iterator[str]:
    """A line for each part whose bytes are not what the packer wrote."""
    for damaged in damaged_files(index, progress):
        yield f"{damaged}: its checksum is wrong"
    for layer in index.layers:
        path = index.path / index.files[layer.file].name
        nbytes = index.banks[layer.bank].nbytes
        with open(path, "rb", buffering=0) as file:
            for expert, crc in enumerate(layer.crc32):
                offset = layer.offset + expert * layer.stride
                if zlib.crc32(os.pread(file.fileno(), nbytes, offset)) != crc:
                    yield f"{path}: layer {layer.layer}, expert {expert}: its checksum is wrong (at byte {offset})"
                progress(layer.stride)
