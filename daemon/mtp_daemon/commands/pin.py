"""`mtpd pin`: hold experts in the pool."""

import argparse
from pathlib import Path

from mtp_client.client import Client
from mtp_client.errors import ClientError, NotRunning
from mtp_daemon.errors import NotServing, UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Hold these experts in the pool, in place of those held before; without any, hold none."
    parser.add_argument("experts", nargs="*", metavar="LAYER:EXPERT", help="for example 3:17 3:40")
    parser.add_argument("--run-dir", type=Path, metavar="D", help="the service's run directory (default: the user's)")


def run(args: argparse.Namespace) -> int:
    experts = tuple(_expert(text) for text in args.experts)
    try:
        with Client(args.run_dir, name="mtpd pin") as client:
            result = client.pin(experts)
    except NotRunning as error:
        raise NotServing(str(error)) from error
    except ClientError as error:
        raise UserError(str(error)) from error
    print(f"{result['pinned']} of {len(experts)} experts pinned")
    return 0


def _expert(text: str) -> tuple[int, int]:
    layer, _, expert = text.partition(":")
    if not (layer.isdecimal() and expert.isdecimal()):
        raise UserError(f"an expert is LAYER:EXPERT, as in 3:17, not {text!r}")
    return int(layer), int(expert)
