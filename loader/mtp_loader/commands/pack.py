"""Make a packed store of a checkpoint.

Each expert becomes one page-aligned, checksummed record, so that a miss costs one read instead of nine. Takes mlx-lm
checkpoints and Hugging Face originals (per-expert or fused), quantised already or to be quantised on the way. An MTP
head is kept: from the checkpoint, from a file beside it, or from --mtp.

Interrupt it when you like: the same command goes on from where it stopped. DST appears at the end, whole.
"""

import argparse
import sys
from pathlib import Path

from mtp_loader.store.resolve import resolve_model
from mtp_protocol.arguments import whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `mtp_loader.cli.Command`."""
    parser.add_argument(
        "source", metavar="SRC", help="a checkpoint's directory, or a Hugging Face id in the local cache"
    )
    parser.add_argument("target", metavar="DST", type=Path, help="the packed store's directory, made by this command")
    parser.add_argument(
        "--q-bits", type=whole(2, 8), metavar="N", help="quantise to N bits: 2, 3, 4, 5, 6 or 8 (default 4)"
    )
    parser.add_argument(
        "--q-group", type=whole(32, 128), metavar="N", help="weights that share a scale: 32, 64 or 128 (default 64)"
    )
    parser.add_argument("--q-mode", metavar="MODE", help="affine (default), mxfp4, mxfp8 or nvfp4")
    parser.add_argument(
        "--scales",
        choices=("keep", "float32"),
        help="type of affine scales; float32 is several times faster on a CPU, and the default there when quantising",
    )
    parser.add_argument("--mtp", type=Path, metavar="PATH", help="the MTP head's own file or directory")


def run(args: argparse.Namespace) -> int:
    """See `mtp_loader.cli.Command`."""
    # Imported here because MLX takes a second: mistakes in the arguments should show at once.
    source = resolve_model(args.source)
    from mtp_loader.store.packing.pack import pack
    from mtp_loader.store.packing.settings import PackSettings, quantisation_of

    settings = PackSettings(quantisation_of(args.q_bits, args.q_group, args.q_mode), args.scales, args.mtp)
    pack(source, args.target.expanduser(), settings, lambda line: print(line, file=sys.stderr))
    return 0
