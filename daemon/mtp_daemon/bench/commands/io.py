"""`mtp-bench io MODEL|FILE…`: what the disk gives, what the loader gets of it, and how it is best read.

Plain threads read random aligned pieces with preadv: `direct` bypasses the page cache (O_DIRECT; F_NOCACHE on macOS,
which does not evict what is cached already: use files larger than memory there), `cached` reads through it after it was
dropped. Given a model, the loader's own readers read its experts into a pool as well, checksums and NaN checks
included. From those figures the number of reader threads and the mode are chosen and kept, for this file system, in the
state directory: `mtpd serve` takes them where `readers` and `direct` are auto. Reading past the page cache is preferred
unless the other way is a fifth faster, for the pool is the cache; fewer threads are, unless more give a twentieth.

  mtp-bench io ~/models/qwen3-next         measure, choose and keep
  mtp-bench io demo --no-save              look only
  mtp-bench io big.bin --threads 1 8 32    files: nothing is chosen
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtp_daemon.bench.disk import drop_page_cache, read_pieces
from mtp_daemon.bench.figures import Spread, table
from mtp_daemon.bench.loader_reads import read_experts
from mtp_daemon.bench.report import Report, add_output, emit
from mtp_daemon.bench.steps import Steps
from mtp_daemon.errors import UserError
from mtp_daemon.state_directory import state_directory
from mtp_loader.chart import Axis, Chart
from mtp_loader.pool.disk_choice import DiskChoice, file_system_of, remember
from mtp_loader.store import open_source
from mtp_loader.store.resolve import resolve_model
from mtp_protocol.arguments import whole

_CACHED_WINS = 1.2
_MORE_THREADS_WIN = 1.05
_MODES = {True: "direct", False: "cached"}


@dataclass(frozen=True)
class Rate:
    """GB/s of `threads` threads. `kib`: bytes a read / 1024; 0 for the loader's readers, which read experts."""

    direct: bool
    kib: int
    threads: int
    gb_per_s: Spread

    @property
    def reader(self) -> str:
        return "the loader, experts" if self.kib == 0 else f"plain threads, {self.kib} KiB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", help="a model, or large files on the disk to measure")
    parser.add_argument(
        "--sizes-kib", type=whole(1, 1 << 20), nargs="+", default=[64, 512, 1728, 4096], help="(64 512 1728 4096)"
    )
    parser.add_argument("--threads", type=whole(1, 64), nargs="+", default=[1, 2, 4, 8, 16], help="(1 2 4 8 16)")
    parser.add_argument("--mb", type=whole(1, 1 << 20), default=256, help="megabytes read for each figure (256)")
    parser.add_argument("--repeats", type=whole(1, 1000), default=3)
    parser.add_argument("--state-dir", help="where the choice is kept (the user's own place, as for mtpd serve)")
    parser.add_argument("--no-save", action="store_true", help="keep nothing")
    add_output(parser, "GB/s over threads")


def run(args: argparse.Namespace) -> int:
    files = [Path(name) for name in args.what]
    model = None
    if not all(path.is_file() for path in files):
        if len(files) > 1:
            raise UserError(f"there is no file {next(path for path in files if not path.is_file())}")
        model = resolve_model(args.what[0])
        files = list(open_source(model, widen=False).files)
    rates = _measure(args, files, model)
    choice = choose(rates) if model is not None else None
    kept = None if choice is None or args.no_save else _keep(args.state_dir, files[0], choice)
    results = {
        "file_system": file_system_of(files[0]),
        "rates": rates,
        "choice": choice,
        "kept_in": kept,
    }
    emit(args, "io", Report(results, _text(args.threads, rates, choice, kept), {"rates": _chart(rates)}))
    return 0


def _measure(args: argparse.Namespace, files: Sequence[Path], model: Path | None) -> list[Rate]:
    """Every cell `repeats` times; the modes in turn, so that what drifts drifts for both."""
    sizes = [*args.sizes_kib, *([0] if model is not None else [])]
    places = [(kib, threads, direct) for kib in sizes for threads in args.threads for direct in _MODES]
    steps = Steps(len(places))
    rates = []
    for kib, threads, direct in places:
        steps.begin(f"{'loader' if kib == 0 else f'{kib} KiB'}, {threads} threads, {_MODES[direct]}")
        values = [_once(args.mb * 10**6, files, model, kib, threads, direct, repeat) for repeat in range(args.repeats)]
        rates.append(Rate(direct, kib, threads, Spread.of(values)))
    steps.end()
    return rates


def _once(
    nbytes: int, files: Sequence[Path], model: Path | None, kib: int, threads: int, direct: bool, seed: int
) -> float:
    drop_page_cache(files)
    if kib:
        return read_pieces(files, kib << 10, threads, direct, nbytes, seed).bytes_per_s / 1e9
    assert model is not None
    return read_experts(model, threads, direct, nbytes, seed).bytes_per_s / 1e9


def choose(rates: Sequence[Rate]) -> DiskChoice:
    """Of what the loader got: past the page cache and with few threads, unless the other way is clearly faster."""
    best = {direct: _fewest([r for r in rates if r.kib == 0 and r.direct == direct]) for direct in _MODES}
    direct = best[False].gb_per_s.median < _CACHED_WINS * best[True].gb_per_s.median
    return DiskChoice(best[direct].threads, direct, best[direct].gb_per_s.median)


def _fewest(rates: Sequence[Rate]) -> Rate:
    fastest = max(r.gb_per_s.median for r in rates)
    enough = [r for r in rates if r.gb_per_s.median * _MORE_THREADS_WIN >= fastest]
    return min(enough, key=lambda r: r.threads)


def _keep(setting: str | None, file: Path, choice: DiskChoice) -> Path | None:
    directory = state_directory(setting)
    if directory is None:
        return None
    try:
        return remember(directory, file, choice)
    except OSError as error:
        raise UserError(f"the choice cannot be kept in {directory}: {error}; --no-save only measures") from error


def _text(threads: Sequence[int], rates: Sequence[Rate], choice: DiskChoice | None, kept: Path | None) -> str:
    blocks = []
    for direct, mode in _MODES.items():
        rows: dict[str, list[str]] = {}
        for r in rates:
            if r.direct == direct:
                rows.setdefault(r.reader, []).append(r.gb_per_s.text())
        header = [f"{mode}: GB/s by threads", *(str(t) for t in threads)]
        blocks.append(table(header, [[name, *cells] for name, cells in rows.items()]))
    if choice is not None:
        where = f"kept in {kept}" if kept else "not kept"
        mode = "on" if choice.direct else "off"
        blocks.append(f"readers = {choice.readers}, direct = {mode}: {choice.gb_per_s:.2f} GB/s; {where}")
    return "\n\n".join(blocks)


def _chart(rates: Sequence[Rate]) -> Chart:
    lines: dict[str, list[tuple[float, float]]] = {}
    for r in sorted(rates, key=lambda r: r.threads):
        lines.setdefault(_short(r), []).append((r.threads, r.gb_per_s.median))
    return Chart("What the disk gives", Axis("reader threads"), Axis("GB/s"), lines)


def _short(rate: Rate) -> str:
    return f"{f'{rate.kib} KiB' if rate.kib else 'loader'}, {_MODES[rate.direct]}"
