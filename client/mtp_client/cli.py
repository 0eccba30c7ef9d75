"""The `mtp-client` command."""

import argparse
import contextlib
import os
import sys
from typing import Any

from mtp_client.answer import Answer
from mtp_client.client import Client
from mtp_client.errors import ClientError, NotRunning, RequestRefused, ServiceBug
from mtp_client.output import JsonOutput, Output, TextOutput
from mtp_protocol.arguments import Parser, real, whole
from mtp_protocol.sampling import RANGES, Sampling

EXIT_OK, EXIT_BUG, EXIT_USAGE, EXIT_SERVICE, EXIT_NOT_RUNNING = 0, 1, 2, 4, 5
EXIT_INTERRUPTED, EXIT_PIPE = 130, 141

_EPILOG = """\
exit codes:
  0    answered: the model stopped, or --max-tokens was reached
  1    a bug of ours (the service says "internal")
  2    wrong use, or the service refused the request and says why
  4    the service failed: a disk, memory, a full queue, or it died while answering
  5    no service runs in this run directory
  130  cancelled (Ctrl-C)
  141  whoever read our output stopped reading

examples:
  mtp-client "Why is the sky blue?"
  git diff | mtp-client --system "Write a commit message." -
  mtp-client --json -n 64 "Once upon a time" | jq -r 'select(.event=="tokens").text'
"""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="mtp-client",
        description="Ask the mtpd service to continue or answer a prompt; the text streams to standard output.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("prompt", help='the prompt; "-" reads it from standard input, and drops one newline at its end')
    add(
        "-n",
        "--max-tokens",
        type=whole(0, (1 << 63) - 1),
        metavar="N",
        help="at most N tokens (default: the service's)",
    )
    add("--run-dir", metavar="D", help="the service's run directory (default: $MTPD_RUN_DIR, else the user's own)")
    add("--server", metavar="tcp://HOST:PORT", help="a service elsewhere; needs both keys (see mtpd keygen --help)")
    add("--server-key", metavar="FILE", help="with --server: its public key")
    add("--key", metavar="FILE", help="with --server: our secret key")
    add("--raw", action="store_true", help="give the model the text as it is: no chat template, no newline dropped")
    add("--system", metavar="TEXT", help="a system message before the prompt")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text (may be repeated)")
    add("--json", action="store_true", help="one JSON object a line: accepted, progress, tokens, finished or failed")
    add(
        "--stats", action="store_true", help="speed, hits and drafts, on standard error, after the answer (all: --json)"
    )
    _add_sampling(parser)
    _add_drafting(parser)
    return parser


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    sampling = parser.add_argument_group("sampling (greedy unless --temperature is above 0)")

    def add(name: str, metavar: str, help: str | None = None) -> None:
        low, high = RANGES[name]
        kind = whole(low, high) if isinstance(low, int) and isinstance(high, int) else real(low, high)
        sampling.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=help)

    add("temperature", "T")
    add("top_p", "P", "keep the likeliest tokens whose probabilities sum to P")
    add("top_k", "K", "keep the K likeliest tokens")
    add("min_p", "P", "drop tokens below P times the likeliest one's probability")
    add("repetition_penalty", "X")
    add("presence_penalty", "X")
    add("frequency_penalty", "X")
    add("seed", "S", "the same seed gives the same text")
    add("logprobs", "N", "with --json: log probabilities of each token and its N best rivals")


def _add_drafting(parser: argparse.ArgumentParser) -> None:
    drafting = parser.add_argument_group("speculation (never changes the text of a greedy or seeded answer)")
    drafting.add_argument(
        "--speculation", metavar="NAME", help="way to draft: off, chain, adaptive, rescue, tree, adaptive+rescue"
    )
    drafting.add_argument("--depth", type=whole(0, 32), metavar="D", help="tokens drafted a round; 0 drafts none")


def _sampling(args: argparse.Namespace) -> Sampling:
    given: dict[str, Any] = {n: getattr(args, n) for n in RANGES if getattr(args, n) is not None}
    return Sampling(**given)


def _read_prompt(*, raw: bool) -> str:
    """Standard input, so that `echo TEXT | mtp-client -` asks what `mtp-client TEXT` does; `raw` keeps every byte."""
    text = sys.stdin.buffer.read().decode()
    return text if raw else text.removesuffix("\n").removesuffix("\r")


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.logprobs is not None and not args.json:
        parser.error("--logprobs needs --json: text has no place for them")
    try:
        prompt = _read_prompt(raw=args.raw) if args.prompt == "-" else args.prompt
        # An argument that is not UTF-8 reaches us as lone surrogates, which no message can carry.
        "".join([prompt, args.system or "", *args.stop]).encode()
        sampling = _sampling(args)
    except UnicodeError as error:
        parser.error(f"the prompt is not UTF-8 text: {error}")
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    output: Output = JsonOutput(sys.stdout) if args.json else TextOutput(sys.stdout, sys.stderr, stats=args.stats)
    try:
        return _answer(args, prompt, sampling, output)
    except BrokenPipeError:
        # Python flushes standard output once more as it exits; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"mtp-client: the answer cannot be written: {error.strerror or error}", file=sys.stderr)
        return EXIT_SERVICE


def _answer(args: argparse.Namespace, prompt: str, sampling: Sampling, output: Output) -> int:
    try:
        with _client(args) as client:
            answer = client.generate(
                prompt,
                raw=args.raw,
                system=args.system,
                max_tokens=args.max_tokens,
                stop=tuple(args.stop),
                sampling=sampling,
                speculation=args.speculation,
                depth=args.depth,
            )
            with answer:
                return _follow(answer, output)
    except ClientError as error:
        output.failed(error)
        return _exit_code(error)


def _client(args: argparse.Namespace) -> Client:
    return Client(args.run_dir, name="mtp-client", server=args.server, server_key=args.server_key, key=args.key)


def _follow(answer: Answer, output: Output) -> int:
    try:
        for event in answer:
            output.event(event)
    except KeyboardInterrupt:
        with contextlib.suppress(ClientError):
            finished = answer.cancel()
            if finished is not None:
                output.event(finished)
        return EXIT_INTERRUPTED
    return EXIT_INTERRUPTED if output.reason == "cancelled" else EXIT_OK


def _exit_code(error: ClientError) -> int:
    match error:
        case NotRunning():
            return EXIT_NOT_RUNNING
        case RequestRefused():
            return EXIT_USAGE
        case ServiceBug():
            return EXIT_BUG
        case _:
            return EXIT_SERVICE


if __name__ == "__main__":
    sys.exit(main())
