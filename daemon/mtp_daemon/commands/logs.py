"""`mtpd logs`: the installed service's log."""

import argparse
import os

from mtp_daemon.errors import EnvironmentFailure
from mtp_daemon.services.install import log_command


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on showing what comes")


def run(args: argparse.Namespace) -> int:
    command = log_command(args.follow)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise EnvironmentFailure(f"cannot run {command[0]}: {error.strerror}") from error
