"""Fills a buffer with the records of a run of experts, from the source's planes.

What is only copied is scattered by the kernel: one preadv reads a long range of the file and puts each expert's row
into its record, so bytes are moved once and no second buffer is needed.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import mlx.core as mx
import numpy as np

from mtp_loader.errors import DamagedCheckpoint, LoaderBug
from mtp_loader.store.packing.numbers import Bytes, mlx_from, numpy_from, widened
from mtp_loader.store.packing.plan import LayerPlan, Recipe
from mtp_loader.store.planes import PlaneSource

_MAX_VECTORS = 1024  # IOV_MAX on Linux and macOS
_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_MAX_READ_BYTES = 1 << 30  # macOS fails a read of 2 GiB or more with EINVAL


@dataclass(frozen=True)
class _Row:
    """A range of a file that goes to a place in the buffer."""

    path: Path
    offset: int
    nbytes: int
    target: int


class SourceFiles(AbstractContextManager["SourceFiles"]):
    """The source's files, each opened once. Owned by one pack; its reads may come from one other thread at a time."""

    def __init__(self) -> None:
        self._fds: dict[Path, int] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def scatter(self, rows: Sequence[_Row], buffer: memoryview) -> None:
        """Read every row into its place; neighbours in a file are read together."""
        for run in _runs(sorted(rows, key=lambda r: (str(r.path), r.offset))):
            views = [buffer[r.target : r.target + r.nbytes] for r in run]
            self._read(run[0].path, run[0].offset, views)

    def _read(self, path: Path, offset: int, views: list[memoryview]) -> None:
        if path not in self._fds:
            self._fds[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        while views:
            got = os.preadv(self._fds[path], views, offset)
            if not got:
                raise DamagedCheckpoint(path, f"ends at {offset}, inside the experts it should hold")
            offset += got
            while views and got >= len(views[0]):
                got -= len(views.pop(0))
            if got:
                views[0] = views[0][got:]


def _runs(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    run: list[_Row] = []
    total = 0
    for row in rows:
        last = run[-1] if run else None
        joins = last is not None and last.path == row.path and last.offset + last.nbytes == row.offset
        if run and (not joins or len(run) == _MAX_VECTORS or total + row.nbytes > _MAX_READ_BYTES):
            yield run
            run, total = [], 0
        run.append(row)
        total += row.nbytes
    if run:
        yield run


def copy_records(plan: LayerPlan, experts: range, files: SourceFiles, buffer: memoryview) -> None:
    """Fill `buffer` (`len(experts) * stride` bytes, zero where records are padded) for a plan that only copies."""
    rows = []
    for recipe in plan.recipes:
        at = plan.place(recipe.targets[0])
        for i, expert in enumerate(experts):
            tensor, offset = recipe.source.locate(expert)
            rows.append(_Row(tensor.path, offset, recipe.source.nbytes, i * plan.stride + at))
    files.scatter(rows, buffer)


def read_plane(plane: PlaneSource, experts: range, files: SourceFiles) -> Bytes:
    """One plane's rows of `experts`: `[len(experts), nbytes]`."""
    if plane.interleaved:
        return _deinterleave(plane, experts, files)
    rows = []
    for i, expert in enumerate(experts):
        tensor, offset = plane.locate(expert)
        rows.append(_Row(tensor.path, offset, plane.nbytes, i * plane.nbytes))
    out = np.empty((len(experts), plane.nbytes), np.uint8)
    files.scatter(rows, out.data.cast("B"))
    return out


def _deinterleave(plane: PlaneSource, experts: range, files: SourceFiles) -> Bytes:
    slab_bytes = plane.nbytes * plane.parts
    rows = []
    for i, expert in enumerate(experts):
        tensor, offset, nbytes = plane.slab(expert)
        rows.append(_Row(tensor.path, offset, nbytes, i * slab_bytes))
    slabs = np.empty((len(experts), slab_bytes), np.uint8)
    files.scatter(rows, slabs.data.cast("B"))
    turns = slabs.reshape(len(experts), plane.shape[0], plane.parts, -1)
    return np.ascontiguousarray(turns[:, :, plane.part]).reshape(len(experts), plane.nbytes)


def make_records(plan: LayerPlan, experts: range, files: SourceFiles, buffer: memoryview) -> None:
    """As `copy_records`, for plans that widen, quantise or take interleaved rows apart."""
    records = np.frombuffer(buffer, np.uint8).reshape(len(experts), plan.stride)
    for recipe in plan.recipes:
        rows = read_plane(recipe.source, experts, files)
        for plane, block in zip(recipe.targets, _made(recipe, rows), strict=True):
            at = plan.place(plane)
            records[:, at : at + plane.source_bytes] = block.reshape(len(experts), plane.source_bytes)


def _made(recipe: Recipe, rows: Bytes) -> Sequence[Bytes]:
    if recipe.step == "copy":
        return (rows,)
    kind = _NAMES[recipe.source.dtype]
    if recipe.step == "widen":
        return (widened(rows.reshape(-1), kind),)
    if recipe.settings is None:
        raise LoaderBug(f"{recipe.source.name}: to be quantised, but not said how")
    settings = recipe.settings
    weight = mlx_from(rows, kind, (-1, recipe.source.shape[-1]))
    if any(p.name.endswith(".scales") and p.source_dtype == "float32" for p in recipe.targets):
        weight = weight.astype(mx.float32)  # the scales get the type of what is quantised
    parts = mx.quantize(weight, group_size=settings.group_size, bits=settings.bits, mode=settings.mode)
    return [numpy_from(part) for part in parts]
