"""`pack`: one checkpoint into one packed store, whole or not at all."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path

import mlx.core as mx

from mtp_loader.errors import BadRequest, DiskFull, EnvironmentFailure
from mtp_loader.progress import Bar, size_text
from mtp_loader.store.checksum import checksum_of
from mtp_loader.store.head import MTP_DENSE
from mtp_loader.store.index import PackedFile, is_packed, read_index
from mtp_loader.store.packing.finish import experts_name, finish
from mtp_loader.store.packing.journal import JOURNAL, Journal
from mtp_loader.store.packing.layer import checksums_of, write_layer
from mtp_loader.store.packing.plan import LayerPlan
from mtp_loader.store.packing.prepare import Prepared, prepare
from mtp_loader.store.packing.records import SourceFiles
from mtp_loader.store.packing.settings import PackSettings
from mtp_loader.store.packing.trunk import Dense
from mtp_loader.store.packing.write import write_safetensors

_SLACK_BYTES = 16 << 20
TRUNK_DENSE = "model-dense-00001.safetensors"
Say = Callable[[str], None]


def pack(source: Path, target: Path, settings: PackSettings, say: Say) -> None:
    """Pack the checkpoint in `source` into `target`, a directory that does not exist yet or is empty.

    `say` gets lines for a person. Interrupted, it leaves `target`.partial behind, and the same call goes on from
    there; `target` appears at the end, whole, by a rename. Memory: about 200 MB, whatever the model's size.
    Raises BadRequest, NotStreamable, DamagedCheckpoint, or DiskFull before anything is written.
    """
    mx.set_cache_limit(64 << 20)  # MLX would keep every buffer it ever freed
    target = target.resolve()
    if is_packed(source):
        raise BadRequest(f"{source} is a packed store already")
    prepared = prepare(source, settings)
    if _is_done(target, prepared):
        say(f"{target} holds this model, packed the same way; nothing to do")
        return
    partial = target.with_name(f"{target.name}.partial")
    with _disk_errors(partial), Journal(partial, prepared.purpose) as journal:
        _require_room(partial, prepared, journal)
        _tell(prepared, say)
        bar = Bar("packing", prepared.nbytes)
        try:
            files = _write(prepared, partial, journal, bar)
        finally:
            bar.close()
        nbytes = finish(prepared, partial, target, files, journal.parts)
    say(f"packed to {target}: {size_text(nbytes)}")


def _is_done(target: Path, prepared: Prepared) -> bool:
    if not target.exists():
        return False
    if not target.is_dir():
        raise BadRequest(f"{target} exists and is no directory")
    if is_packed(target):
        index = read_index(target)
        if (index.source, index.options) == (prepared.fingerprint, prepared.settings.plain()):
            return True
        raise BadRequest(f"{target} holds another packed store; remove it or choose another directory")
    if any(target.iterdir()):
        raise BadRequest(f"{target} is not empty; remove it or choose another directory")
    return False


def _require_room(partial: Path, prepared: Prepared, journal: Journal) -> None:
    """Refuse before anything is written (but the journal) when the disk would fill."""
    written = sum(f.stat().st_blocks * 512 for f in partial.iterdir() if f.name != JOURNAL) if journal.parts else 0
    needed = prepared.nbytes + _SLACK_BYTES - min(written, prepared.nbytes)
    free = shutil.disk_usage(partial).free
    if needed > free:
        if not journal.parts:
            shutil.rmtree(partial)
        raise DiskFull(f"{partial.parent}: needs {size_text(needed)}, but only {size_text(free)} are free")


def _tell(prepared: Prepared, say: Say) -> None:
    reads = sorted({p.record_bytes for p in prepared.plans})
    say(f"{len(prepared.plans)} layers, {' / '.join(size_text(n) for n in reads)} an expert")
    say("MTP head: " + (f"none ({prepared.head_missing})" if prepared.head is None else "kept"))
    if prepared.trunk.left_out:
        say(f"left out, no parameter of the model: {', '.join(prepared.trunk.left_out[:5])}")


def _write(prepared: Prepared, partial: Path, journal: Journal, bar: Bar) -> list[PackedFile]:
    """Every file but the index; parts that the journal knows and that are whole are kept."""
    files = []
    for name, dense in ((TRUNK_DENSE, prepared.trunk), (MTP_DENSE, prepared.head)):
        if dense is not None:
            files.append(_write_dense(partial / name, dense, journal, bar))
    for number, size in enumerate(prepared.experts_files):
        path = partial / experts_name(number)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, size)
            _write_experts([p for p in prepared.plans if p.file == number], fd, journal, bar)
        finally:
            os.close(fd)
        files.append(PackedFile(path.name, size, None))
    return files


def _write_dense(path: Path, dense: Dense, journal: Journal, bar: Bar) -> PackedFile:
    if path.exists() and journal.parts.get(path.name) == [checksum_of(path)]:
        bar.add(dense.nbytes, skipped=True)
        return PackedFile(path.name, path.stat().st_size, journal.parts[path.name][0])
    written = write_safetensors(path, dense.jobs, bar.add)
    assert written.crc32 is not None
    journal.add(path.name, [written.crc32])
    return written


def _write_experts(plans: Sequence[LayerPlan], fd: int, journal: Journal, bar: Bar) -> None:
    with SourceFiles() as files:
        for plan in plans:
            part = f"layer {plan.layer.layer}"
            if part in journal.parts:
                kept = checksums_of(fd, plan)
                if kept == journal.parts[part]:
                    bar.add(plan.nbytes, skipped=True)
                    continue
                journal.forget(part)
            journal.add(part, write_layer(plan, files, fd, bar.add))


@contextmanager
def _disk_errors(partial: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or partial
        text = f"{where}: {error.strerror or error}; what is packed so far is kept, run the same command again to go on"
        raise (DiskFull if error.errno == ENOSPC else EnvironmentFailure)(text) from error
