"""How a command speaks to the running service: one way to it, and one reading of what goes wrong."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtp_client.client import Client
from mtp_client.errors import ClientError, NotRunning, RequestRefused, ServiceBug
from mtp_daemon.errors import DaemonBug, DaemonError, EnvironmentFailure, NotServing, UserError


def add_run_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-dir", type=Path, metavar="D", help="the service's run directory (default: the user's)")


@contextmanager
def service(run_directory: Path | None, name: str) -> Iterator[Client]:
    """A connection under the command's `name`. Raises DaemonError for whatever the client raises, kind for kind."""
    try:
        with Client(run_directory, name=name) as client:
            yield client
    except ClientError as error:
        raise _of_our_tree(error) from error


def _of_our_tree(error: ClientError) -> DaemonError:
    match error:
        case NotRunning():
            return NotServing(str(error))
        case RequestRefused():
            return UserError(str(error))
        case ServiceBug():
            return DaemonBug(str(error))
        case _:
            return EnvironmentFailure(str(error))
