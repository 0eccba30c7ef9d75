"""Writes one layer's records: a thread reads and checks the next run of experts while this one is written."""

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from mtp_loader.store.packing.plan import LayerPlan, chunk_experts
from mtp_loader.store.packing.records import SourceFiles, copy_records, make_records

CHUNK_BYTES = 8 << 20  # two of them stay in the processor's cache between being read, checked and written
# One write of tens of megabytes ran at a tenth of the speed of the same bytes in pieces (Linux 6, ext4, measured).
WRITE_BYTES = 2 << 20


def write_layer(plan: LayerPlan, files: SourceFiles, fd: int, progress: Callable[[int], None]) -> list[int]:
    """Write every record of `plan` to `fd` at its place; returns the records' checksums. Raises OSError.

    Two buffers of `CHUNK_BYTES` (one expert at least) are all the memory it takes, whatever the layer's size.
    """
    step = chunk_experts(plan, CHUNK_BYTES)
    runs = [range(at, min(at + step, plan.layer.experts)) for at in range(0, plan.layer.experts, step)]
    buffers = [bytearray(step * plan.stride) for _ in range(min(2, len(runs)))]

    def make(number: int) -> tuple[memoryview, list[int]]:
        run = runs[number]
        buffer = memoryview(buffers[number % 2])[: len(run) * plan.stride]
        (copy_records if plan.is_copy else make_records)(plan, run, files, buffer)
        starts = range(0, len(buffer), plan.stride)
        return buffer, [zlib.crc32(buffer[at : at + plan.record_bytes]) for at in starts]

    checksums: list[int] = []
    for number, (buffer, found) in enumerate(_ahead(make, len(runs))):
        write_at(fd, buffer, plan.offset + runs[number].start * plan.stride)
        checksums += found
        progress(len(buffer))
    return checksums


def _ahead(make: Callable[[int], tuple[memoryview, list[int]]], count: int) -> Iterator[tuple[memoryview, list[int]]]:
    """make(0), make(1), …, each made while the caller uses the one before it."""
    with ThreadPoolExecutor(1, "pack-reader") as reader:
        coming = reader.submit(make, 0)
        for number in range(count):
            made = coming.result()
            if number + 1 < count:
                coming = reader.submit(make, number + 1)
            yield made


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of `data`, and let the kernel begin to put it on the disk so that the end need not wait for it."""
    start, total = offset, len(data)
    while data:
        written = os.pwrite(fd, data[:WRITE_BYTES], offset)
        data, offset = data[written:], offset + written
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, start, total, os.POSIX_FADV_DONTNEED)


def checksums_of(fd: int, plan: LayerPlan) -> list[int]:
    """The checksums of the records as they are in the file, for a pack that goes on."""
    found = []
    for expert in range(plan.layer.experts):
        found.append(zlib.crc32(os.pread(fd, plan.record_bytes, plan.offset + expert * plan.stride)))
    return found
