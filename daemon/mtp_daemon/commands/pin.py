"""`mtpd pin`: hold experts in the pool."""

import argparse

from mtp_daemon.commands.asking import add_run_dir, service
from mtp_daemon.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Hold these experts in the pool, in place of those held before; without any, hold none."
    parser.add_argument("experts", nargs="*", metavar="LAYER:EXPERT", help="for example 3:17 3:40")
    add_run_dir(parser)


def run(args: argparse.Namespace) -> int:
    experts = tuple(_expert(text) for text in args.experts)
    with service(args.run_dir, "mtpd pin") as client:
        result = client.pin(experts)
    print(f"{result['pinned']} of {len(experts)} experts pinned" if experts else "no experts are pinned now")
    return 0


def _expert(text: str) -> tuple[int, int]:
    layer, _, expert = text.partition(":")
    if not (layer.isdecimal() and expert.isdecimal()):
        raise UserError(f"an expert is LAYER:EXPERT, as in 3:17, not {text!r}")
    return int(layer), int(expert)
