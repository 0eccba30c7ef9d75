"""`mtpd calibrate`: find out whether holding experts pays, and hold them only then."""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtp_client.client import Client
from mtp_daemon.commands.asking import add_run_dir, service
from mtp_daemon.errors import UserError
from mtp_protocol.arguments import real, whole
from mtp_protocol.client_messages import Tokens

DESCRIPTION = """\
Find out whether holding the most used experts in the pool (pins) beats giving slots to whoever is asked for, on this
model, with this pool and this policy, and pin them only if it does.

With --prompts the service answers each prompt, and what it routed meanwhile is used; without, what it routed for its
last requests is (about the last 1,800 tokens of a large model). The earlier texts choose the pins, the later ones
prove them: pins stay only where they win more than luck there. They take the place of those held before, are
remembered for the next start, and `mtpd pin` without experts lets them go. Ctrl-C changes nothing.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts to answer first, one a line")
    parser.add_argument("--tokens", type=whole(1, 1 << 20), default=64, metavar="N", help="of each answer (64)")
    parser.add_argument(
        "--share", type=real(0.001, 1), nargs="+", default=[], metavar="X", help="shares of the pool (0.05 to 0.5)"
    )
    parser.add_argument("--json", action="store_true", help="the figures, as one JSON object")
    add_run_dir(parser)


def run(args: argparse.Namespace) -> int:
    prompts = [] if args.prompts is None else _prompts(args.prompts)
    with service(args.run_dir, "mtpd calibrate") as client:
        began = time.monotonic()
        _answer(client, prompts, args.tokens)
        _note("learning and proving on recorded routing")
        last_s = time.monotonic() - began if prompts else None
        result = client.calibrate(last_s, tuple(args.share))
    print(json.dumps(dict(result), ensure_ascii=False) if args.json else describe(result))
    return 0


def _texts(count: int) -> str:
    return "1 text" if count == 1 else f"{count} texts"


def describe(result: Mapping[str, Any]) -> str:
    """The figures and what was done, for a person."""
    learned, held_out = result["learned"], result["held_out"]
    lines = [
        f"policy {result['policy']}, {result['slots']} slots; learned on {_texts(learned['texts'])} "
        f"({learned['forwards']} forwards), proved on {held_out['texts']} others ({held_out['forwards']})"
    ]
    if not result["pins"]:
        rate = f"hits {result['hit_rate_without']:.2%} without pins"
        return "\n".join([*lines, f"on the learned texts themselves every share of pins lost ({rate}): none are held"])
    lines.append(
        f"{result['pins']} pins, {result['share_of_pool']:.0%} of the pool: hits {result['hit_rate_with']:.2%} with, "
        f"{result['hit_rate_without']:.2%} without: {100 * result['gain']:+.2f} points, where luck makes "
        f"{100 * result['luck']:.2f}"
    )
    held = f"{result['pinned']} experts are held" if result["pays"] else "that is no proof: none are held"
    return "\n".join([*lines, held])


def _prompts(path: Path) -> list[str]:
    try:
        prompts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the prompts in {path}: {error}") from error
    if not prompts:
        raise UserError(f"{path} holds no prompt: one a line")
    return prompts


def _answer(client: Client, prompts: list[str], tokens: int) -> None:
    """Nobody reads the answers: their routing is what is wanted."""
    for number, prompt in enumerate(prompts, 1):
        done = 0
        for event in client.generate(prompt, max_tokens=tokens):
            if isinstance(event, Tokens):
                done += len(event.ids)
        _note(f"prompt {number} of {len(prompts)}: {done} tokens")


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
