"""Expert files and their reader: what comes into a slot is the expert's bytes, whatever the disk does."""

import errno
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mtp_loader.errors import ReadFailed
from mtp_loader.pool.expert_reader import ExpertReader, Place
from mtp_loader.pool.files import ExpertFile
from mtp_loader.pool.region import PoolRegion
from mtp_loader.pool.shim import Preadv, ReadShim, ShimSettings
from mtp_protocol.geometry import Plane
from support.plain_source import PLANES, PlainSource

ALIGNED = tuple(replace(p, shape=(p.shape[0] * 8, *p.shape[1:])) for p in PLANES)  # rows of whole 512-byte blocks
HALF = tuple(
    Plane(p.name, "float32", d, p.shape) for p, d in zip(PLANES, ("bfloat16", "float16", "float32"), strict=True)
)


def reader_of(source: PlainSource, preadv: Preadv = os.preadv, **more: object) -> ExpertReader:
    return ExpertReader(source, direct=bool(more.get("direct", True)), verify="first", preadv=preadv)


def load(reader: ExpertReader, region: PoolRegion, expert: int, slot: int) -> list[bytes]:
    place = Place(0, slot, 0, expert)
    for piece in reader.pieces(place):
        reader.read(region, place, piece)
    reader.check(region, place)
    rows = region.rows(0, slot)
    copied = [bytes(row) for row in rows]
    for row in rows:
        row.release()
    return copied


def expected(source: PlainSource, expert: int) -> list[bytes]:
    """The record cut into planes, each widened the slow way."""
    rows, at = [], 0
    for plane in source.planes:
        raw = source.records[expert][at : at + plane.source_bytes]
        at += plane.source_bytes
        if plane.source_dtype == plane.dtype:
            rows.append(raw)
        elif plane.source_dtype == "bfloat16":
            rows.append(b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2)))
        else:
            rows.append(np.frombuffer(raw, np.float16).astype(np.float32).tobytes())
    return rows


@pytest.mark.parametrize("planes", [PLANES, ALIGNED, HALF], ids=["odd rows", "aligned rows", "widened"])
@pytest.mark.parametrize(("alignment", "lead"), [(4096, 0), (1, 0), (1, 72)])
@pytest.mark.parametrize("direct", [True, False])
def test_every_row_is_the_experts(
    tmp_path: Path,
    region_of: Callable[..., PoolRegion],
    planes: tuple[Plane, ...],
    alignment: int,
    lead: int,
    direct: bool,
) -> None:
    """Scattered into the rows, staged for O_DIRECT, cached, or widened: always the same bytes, and no neighbour's."""
    source = PlainSource(tmp_path / "experts", 5, planes, alignment, lead)
    region, reader = region_of(source), reader_of(source, direct=direct)
    for expert, slot in [(4, 0), (0, 1), (2, 4), (3, 2)]:
        assert load(reader, region, expert, slot) == expected(source, expert)
    assert [bytes(r) for r in region.rows(0, 3)] == [bytes(p.row_bytes) for p in planes]
    reader.close()


@pytest.mark.parametrize("shim", [ShimSettings(short=700), ShimSettings(eio=(1, 2)), ShimSettings(short=1)])
def test_short_reads_and_passing_errors_are_read_through(
    tmp_path: Path, region_of: Callable[..., PoolRegion], shim: ShimSettings
) -> None:
    """A call may bring less than asked; EIO may pass."""
    source = PlainSource(tmp_path / "experts", 2)
    region, reader = region_of(source), reader_of(source, ReadShim(shim))
    assert load(reader, region, 1, 0) == expected(source, 1)
    reader.close()


def test_no_call_asks_for_what_macos_refuses(tmp_path: Path) -> None:
    """Reads of 2 GiB and more fail there with EINVAL; five GiB come in parts, each byte asked for once."""
    (tmp_path / "big").touch()
    os.truncate(tmp_path / "big", 6 << 30)  # a hole, never read
    asked: list[tuple[int, int]] = []

    def preadv(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        nbytes = sum(b.nbytes for b in buffers)
        if nbytes > (2 << 30) - 1:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        asked.append((offset, nbytes))
        return nbytes

    file = ExpertFile(tmp_path / "big", direct=False, preadv=preadv)
    piece = memoryview(mmap.mmap(-1, 640 << 20))  # untouched memory: only its length counts
    file.read(4096, [piece] * 8, 8 * piece.nbytes, aligned=False)
    file.close()
    assert [offset for offset, _ in asked] == [4096 + sum(n for _, n in asked[:i]) for i in range(len(asked))]
    assert sum(n for _, n in asked) == 5 << 30


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_none_is_refused(tmp_path: Path, region_of: Callable[..., PoolRegion], value: float) -> None:
    """A NaN in an expert is named by plane, file and offset, and never sampled from."""
    source = PlainSource(tmp_path / "experts", 3, checksums=False)
    rows = expected(source, 1)
    scales = np.frombuffer(rows[1], np.float32).copy()
    scales[3] = value
    source.records[1] = rows[0] + scales.tobytes() + rows[2]
    source.write()
    region, reader = region_of(source), reader_of(source)
    with pytest.raises(ReadFailed, match=r"experts at offset 4096: gate.scales holds a NaN"):
        load(reader, region, 1, 0)
    load(reader, region, 2, 0)
    reader.close()


def test_a_damaged_record_works_again_once_another_file_is_in_its_place(
    tmp_path: Path, region_of: Callable[..., PoolRegion]
) -> None:
    """The checksum fails while the file is damaged; a sound one put in its place is found without a restart."""
    source = PlainSource(tmp_path / "experts", 3)
    sound = source.path.read_bytes()
    source.path.write_bytes(sound[:4096] + b"\xff\xff" + sound[4098:])
    region, reader = region_of(source), reader_of(source)
    with pytest.raises(ReadFailed, match="checksum"):
        load(reader, region, 1, 0)
    (tmp_path / "new").write_bytes(sound)
    os.replace(tmp_path / "new", source.path)
    assert load(reader, region, 1, 0) == expected(source, 1)
    reader.close()


@pytest.mark.parametrize("damage", ["checksum", "cut"])
def test_a_replaced_file_is_found_by_every_reader(
    tmp_path: Path, region_of: Callable[..., PoolRegion], damage: str
) -> None:
    """Two read the old file, one opens the new one: the other reads again too, though the path is no news any more."""
    source = PlainSource(tmp_path / "experts", 3)
    sound = source.path.read_bytes()
    bad = sound[:4096] + b"\xff" * (len(sound) - 4096) if damage == "checksum" else sound[:4096]
    both, replaced = threading.Barrier(2), threading.Barrier(2, lambda: os.replace(tmp_path / "new", source.path))
    first: dict[int, bool] = {}

    def preadv(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        count = os.preadv(fd, buffers, offset)
        me = threading.get_ident()
        if me not in first:
            first[me] = True
            both.wait(5)
            replaced.wait(5)
        return count

    region, reader = region_of(source), reader_of(source, preadv, direct=False)
    source.path.write_bytes(bad)
    (tmp_path / "new").write_bytes(sound)
    with ThreadPoolExecutor(2) as threads:
        loaded = [threads.submit(load, reader, region, expert, expert) for expert in (1, 2)]
        assert [x.result(10) for x in loaded] == [expected(source, 1), expected(source, 2)]
    reader.close()


def test_descriptors_of_replaced_files_do_not_pile_up(tmp_path: Path, region_of: Callable[..., PoolRegion]) -> None:
    """A disk that fails for good makes the file be opened again and again; none of those may stay open."""
    source = PlainSource(tmp_path / "experts", 2)
    region, reader = region_of(source), reader_of(source, ReadShim(ShimSettings(eio_from=1)))
    before = len(os.listdir("/dev/fd"))
    for _ in range(20):
        with pytest.raises(ReadFailed, match="Input/output error"):
            load(reader, region, 0, 0)
    assert len(os.listdir("/dev/fd")) == before
    reader.close()


def test_a_file_replaced_during_a_read_is_closed_when_the_read_ends(tmp_path: Path) -> None:
    """Never under a reader's hands, where its number might name another file by then, and never later."""
    (tmp_path / "file").write_bytes(bytes(8192))

    def preadv(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        assert file.reopen(same_file_too=True)
        return os.preadv(fd, buffers, offset)  # would be EBADF

    file = ExpertFile(tmp_path / "file", direct=True, preadv=preadv)
    before = len(os.listdir("/dev/fd"))
    file.read(0, [memoryview(bytearray(100))], 100, aligned=False)
    assert len(os.listdir("/dev/fd")) == before
    file.close()
