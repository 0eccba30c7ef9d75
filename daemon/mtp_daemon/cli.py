"""The `mtpd` command."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the message is for whoever runs it from a checkout with an old Python
    sys.exit("mtpd needs Python 3.11 or newer")

import argparse
import logging
import os

from mtp_daemon.commands import COMMANDS
from mtp_daemon.errors import AlreadyRunning, DaemonError, EnvironmentFailure, UserError
from mtp_loader.errors import EnvironmentFailure as LoaderEnvironmentFailure
from mtp_loader.errors import LoaderError
from mtp_protocol.arguments import Parser

_DESCRIPTION = """\
mtpd runs Mixture-of-Experts language models that are larger than memory: experts stream from the disk into a pool,
and the model's own MTP head drafts several tokens for one round of reads.
"""

_EPILOG = """\
first steps:
  mtpd serve demo                     start the service on the shipped model, in this terminal
  mtp-client "In the beginning"       ask it, from another one
  mtpd status                         see what it does
  mtpd stop                           stop it

your own model:
  mtp-loader fetch OWNER/NAME         bring a checkpoint into the local cache
  mtp-loader pack OWNER/NAME DIR      pack it: one read an expert instead of nine
  mtpd serve DIR --pool 8GiB          serve it with 8 GiB of experts in memory (--pool auto looks what is free)

exit codes:
  0  done      2  wrong use, setting or model      4  the machine failed us: disk, memory, a child process
  1  a bug     3  already running                  5  no service runs here
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = Parser(
        prog="mtpd", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.summary, description=command.summary)
        command.module.configure(sub)
        sub.set_defaults(run=command.module.run)
    args = parser.parse_args(argv)
    try:
        code: int = args.run(args)
        return code
    except (DaemonError, LoaderError) as error:
        print(f"mtpd: {error}", file=sys.stderr)
        return _exit_code(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone, as after `| head`
        return 1
    except OSError as error:
        print(f"mtpd: {error}", file=sys.stderr)
        return EnvironmentFailure.exit_code
    except Exception:
        logging.getLogger("mtpd").exception("a bug of ours")
        return 1


def _exit_code(error: DaemonError | LoaderError) -> int:
    code = error.exit_code
    if isinstance(error, LoaderEnvironmentFailure):
        code = EnvironmentFailure.exit_code
    # launchd knows no list of final exit codes: to it, what starting again would not mend is a success.
    final = isinstance(error, UserError | AlreadyRunning) or code == 2
    return 0 if final and os.environ.get("MTPD_SERVICE_MANAGER") == "launchd" else code


if __name__ == "__main__":
    sys.exit(main())
