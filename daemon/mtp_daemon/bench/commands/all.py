"""`mtp-bench all`: a set of everything in about ten minutes, on a bare machine and a model of its own making.

Makes a synthetic checkpoint of 12 layers x 64 experts (755 MB), routed like the demo model, packs it, and keeps it in
the cache folder for the next time. Then runs io, stream (three pool shares, and reads at 1x of compute), spec on the
demo model and serve, one after the other, each with its JSON and picture in the folder --out. Use a quiet machine: the
load at the start of each part is in its JSON.

  mtp-bench all --out bench-results
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from mtp_daemon.errors import EnvironmentFailure, UserError

_SHAPE = ("--family", "qwen3_moe", "--routing", "demo")
_STREAM = ("--shares", "100", "50", "25", "--tokens", "24", "--repeats", "2", "--disk-ratio", "1")
_PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("io", ("PACKED", "--no-save", "--sizes-kib", "64", "1024", "--threads", "1", "4", "8", "--repeats", "2")),
    ("stream", ("PACKED", *_STREAM)),
    ("spec", ("demo", "--tokens", "64", "--repeats", "3", "--pool", "50%")),
    ("serve", ("demo", "--requests", "20", "--rate", "1", "--tokens", "32")),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for JSON and pictures")
    parser.add_argument("--cache", type=Path, default=_default_cache(), help="folder for the checkpoint (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Exit code of the first part that failed, after all have run."""
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        args.cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make a folder: {error}; choose --out and --cache") from error
    packed = _packed(args.cache)
    codes = []
    for name, words in _PARTS:
        print(f"\n== mtp-bench {name}", flush=True)
        began = time.monotonic()
        where = ["--json", str(args.out / f"{name}.json"), "--picture", str(args.out / f"{name}.svg")]
        codes.append(_run("mtp_daemon.bench.cli", name, *(str(packed) if w == "PACKED" else w for w in words), *where))
        print(f"({time.monotonic() - began:.0f} s)")
    print(f"\nJSON and pictures are in {args.out.resolve()}")
    return next((code for code in codes if code), 0)


def _packed(cache: Path) -> Path:
    """The packed synthetic checkpoint, made where it is not there yet."""
    plain, packed = cache / "synthetic-qwen3_moe", cache / "synthetic-qwen3_moe-packed"
    if not packed.exists():
        if not plain.exists():
            _must(_run("mtp_daemon.bench.cli", "synth", str(plain), *_SHAPE), "made")
        _must(_run("mtp_loader.cli", "pack", str(plain), str(packed)), "packed")
    return packed


def _run(module: str, *words: str) -> int:
    """A command in a process of its own, as a user would run it; its exit code."""
    return subprocess.run([sys.executable, "-m", module, *words]).returncode


def _must(code: int, what: str) -> None:
    if code:
        raise EnvironmentFailure(f"the synthetic checkpoint could not be {what} (exit code {code}); see above")


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtpd" / "bench"
