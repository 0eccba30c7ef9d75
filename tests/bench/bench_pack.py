"""Packing beside `cp` of the same bytes, in turn, and the packer's peak memory.

    python tests/bench/bench_pack.py [--gb 4] [--rounds 3] [--dir /a/disk/with/room]

Nothing is quantised on the way. Both are timed as whole processes with what they wrote put on the disk (`cp` is
followed by `sync` of its files, since a pack ends with it), and from the page cache: the source was just written.
Prints both rates, pack's share of cp's, and the peak of the packer's memory beside the largest layer.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

sys.path.insert(0, str(Path(__file__).parents[1]))
from mtp_loader.progress import size_text
from mtp_loader.store import open_source
from mtp_loader.store.packing.dense import Block, Job, Output
from mtp_loader.store.packing.write import write_safetensors
from support.checkpoints import make_model
from support.tokenizer import write_tokenizer

SHAPE = {"hidden_size": 2048, "moe_intermediate_size": 512, "num_experts": 128, "num_experts_per_tok": 8}
LAYER_BYTES = 128 * 1_769_472  # 128 of Qwen3-Next's experts, 4 bits in groups of 64 with bf16 scales


def make_source(path: Path, layers: int) -> None:
    """A stacked 4-bit checkpoint of random bytes: its numbers mean nothing, its layout is the real one."""
    model, config = make_model("qwen3_moe", quant="q4g64/bf16", changes={**SHAPE, "num_hidden_layers": 1})
    config["num_hidden_layers"] = layers
    noise = np.random.default_rng(0).integers(0, 256, 64 << 20, dtype=np.uint8)
    kinds = {mx.uint32: "U32", mx.bfloat16: "BF16", mx.float32: "F32"}
    jobs = []
    for name, value in tree_flatten(model.parameters()):
        copies = range(layers) if ".layers.0." in name else range(1)
        for n in copies:
            output = Output(name.replace(".layers.0.", f".layers.{n}."), kinds[value.dtype], tuple(value.shape))
            jobs.append(Job((output,), lambda o=output: _noise(o, noise)))  # type: ignore[misc]
    path.mkdir(parents=True)
    write_safetensors(path / "model.safetensors", jobs, lambda n: None)
    (path / "config.json").write_text(json.dumps(config))
    write_tokenizer(path, config["vocab_size"])


def _noise(output: Output, noise: Block) -> Iterator[Sequence[Block]]:
    left = output.nbytes
    while left:
        part = noise[: min(left, len(noise))]
        left -= len(part)
        yield (part,)


def timed(command: list[str]) -> tuple[float, int]:
    """Seconds and peak resident bytes of a process."""
    begun = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} failed with {process.returncode}")
    return time.monotonic() - begun, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--make", type=Path, help="only write the source there")
    args: Any = parser.parse_args()
    if args.make:
        make_source(args.make, max(1, round(args.gb * 1e9 / LAYER_BYTES)))
        return
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="bench-pack-") as room:
        home = Path(room)
        source = home / "source"
        # In a process of its own: a child's peak memory counts its parent's at the fork.
        making = [sys.executable, __file__, "--make", str(source), "--gb", str(args.gb)]
        subprocess.run(making, check=True)
        nbytes = sum(p.stat().st_size for p in source.iterdir())
        geometry = open_source(source, widen=False).geometry
        layer = max(y.experts * geometry.banks[y.bank].source_bytes for y in geometry.layers)
        shares, peaks = [], []
        for _ in range(args.rounds):
            copied, _ = timed(["sh", "-c", f"cp -r {source} {home / 'copy'} && sync {home / 'copy'}/*"])
            shutil.rmtree(home / "copy")
            packed, peak = timed([sys.executable, "-m", "mtp_loader.cli", "pack", str(source), str(home / "packed")])
            shutil.rmtree(home / "packed")
            shares.append(copied / packed)
            peaks.append(peak)
            print(f"cp {nbytes / copied / 1e6:.0f} MB/s  pack {nbytes / packed / 1e6:.0f} MB/s  {shares[-1]:.2f} of cp")
        middle = sorted(shares)[len(shares) // 2]
        print(f"{size_text(nbytes)}: packing runs at {middle:.2f} of cp; wanted >= 0.60")
        allowed = size_text(layer + 500_000_000)
        print(f"peak memory {size_text(max(peaks))}; a layer has {size_text(layer)}, so wanted <= {allowed}")


if __name__ == "__main__":
    main()
