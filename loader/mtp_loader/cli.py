"""`mtp-loader`: everything about models on disk, one subcommand a module of `mtp_loader.commands`."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from mtp_loader.errors import LoaderError
from mtp_protocol.arguments import Parser

# name → (module, line for the help). A module has `add_arguments(parser)` and `run(args) -> int`; it is imported only
# when its subcommand is asked for, so that `--help` and the light commands start at once.
COMMANDS = {
    "fetch": ("mtp_loader.commands.fetch", "download a model by its Hugging Face id; the only command that downloads"),
    "pack": ("mtp_loader.commands.pack", "make a packed store of a checkpoint: one read an expert, checksummed"),
    "inspect": ("mtp_loader.commands.inspect", "what a model is, what an expert and a token cost, MTP yes or no"),
    "verify": ("mtp_loader.commands.verify", "read a packed store and check every checksum"),
    "calibrate": ("mtp_loader.commands.calibrate", "find experts worth pinning, and prove it on routing held out"),
    "replay": ("mtp_loader.commands.replay", "try eviction policies and predictors on recorded routing"),
}
EXIT_CODES = """\
exit codes:
  0  done, or all is well
  1  damaged files, a full disk, another failure of the machine
  2  a mistake in what was asked for, said with what to do instead
  130  interrupted; `pack` goes on when it is run again
"""
EPILOG = f"""\
a first model, from nothing to an answer:
  mtp-loader fetch mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit
  mtp-loader pack mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit ~/models/qwen3-next
  mtp-loader inspect ~/models/qwen3-next
  mtpd serve ~/models/qwen3-next --pool 25%

{EXIT_CODES}"""


class Command(Protocol):
    """What a module of `mtp_loader.commands` offers."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the subcommand's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the exit code. Raises LoaderError."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `mtp-loader`; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser(arguments).parse_args(arguments)
    try:
        return cast(Command, args.command).run(args)
    except LoaderError as error:
        print(f"mtp-loader: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("mtp-loader: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone, as after `| head`
        return 1


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = Parser(
        "mtp-loader",
        description="Packs, inspects and checks models whose experts are streamed from disk.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    wanted = next((a for a in arguments if a in COMMANDS), None)
    for name, (module_name, line) in COMMANDS.items():
        sub = commands.add_parser(name, help=line, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == wanted:
            module = cast(Command, importlib.import_module(module_name))
            sub.description = module.__doc__
            sub.epilog = EXIT_CODES
            module.add_arguments(sub)
            sub.set_defaults(command=module)
    return parser


if __name__ == "__main__":
    sys.exit(main())
