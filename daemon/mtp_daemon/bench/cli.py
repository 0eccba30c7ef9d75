"""The `mtp-bench` command."""

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from mtp_client.errors import ClientError
from mtp_daemon.errors import DaemonError, EnvironmentFailure
from mtp_loader.errors import LoaderError
from mtp_protocol.arguments import Parser

COMMANDS = {
    "all": "a set of everything in about ten minutes, on a model of its own making",
    "synth": "write a checkpoint of any size whose routing follows a plan",
    "io": "what the disk gives, by read size, threads and cache",
    "spec": "speculation by depth, against plain decoding on the same service",
    "serve": "many clients at once: first tokens, time a token, fairness, what the front adds",
    "stream": "decode and prefill by pool share, beside mlx-lm with everything resident and the disk's bound",
}
_TERMINATED = 143
_EPILOG = """\
Exit codes: 0 measured, 1 something failed while measuring, 2 a wrong option, 4 the machine failed us,
130 interrupted, 143 terminated. Whatever the command started ends with it.
Everything compared is measured in turn in one run; figures are medians with minimum and maximum. Use a quiet machine.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; its module in `bench/commands/` is imported only then."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = Parser(
        prog="mtp-bench",
        description="Honest numbers about streaming experts and speculation on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = subparsers.add_parser(name, help=summary)
        if name in words[:1]:
            module = importlib.import_module(f"mtp_daemon.bench.commands.{name}")
            command.description = module.__doc__
            command.formatter_class = argparse.RawDescriptionHelpFormatter
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(words)
    with suppress(ValueError):  # not the main thread: whoever runs us there ends us some other way
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that what we started ends with us
    try:
        code: int = args.run(args)
    except (DaemonError, LoaderError) as error:
        print(f"mtp-bench: {error}", file=sys.stderr)
        return error.exit_code
    except ClientError as error:
        print(f"mtp-bench: the service failed us: {error}", file=sys.stderr)
        return EnvironmentFailure.exit_code
    except OSError as error:
        print(f"mtp-bench: {error}", file=sys.stderr)
        return EnvironmentFailure.exit_code
    except KeyboardInterrupt:
        print("mtp-bench: interrupted", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
