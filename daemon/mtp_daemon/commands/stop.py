"""`mtpd stop`: ask the service to stop, and wait until it has."""

import argparse
import os
import signal
import time

from mtp_client.client import Client
from mtp_client.connection import daemon_pid
from mtp_client.errors import ClientError, RequestRefused
from mtp_daemon.commands.asking import add_run_dir
from mtp_daemon.errors import EnvironmentFailure, NotServing, UserError
from mtp_protocol.arguments import real
from mtp_protocol.run_directory import default_run_directory

# For children that must be killed, and for what the service writes last.
_AFTER_S = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_dir(parser)
    parser.add_argument(
        "--deadline",
        type=real(0, 3600),
        default=10.0,
        metavar="S",
        help="seconds a running answer may go on (10)",
    )


def run(args: argparse.Namespace) -> int:
    run_directory = args.run_dir if args.run_dir is not None else default_run_directory()
    pid = daemon_pid(run_directory)
    if pid is None:
        raise NotServing(f"no mtpd service runs in {run_directory}")
    try:
        with Client(run_directory, name="mtpd stop") as client:
            client.shutdown(args.deadline)
    except RequestRefused as error:
        raise UserError(str(error)) from error
    except ClientError:
        # Still starting, or too busy to answer: the signal means the same.
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + args.deadline + _AFTER_S
    # The lock is free exactly when the daemon is gone; there is nothing to wait on but to look.
    while daemon_pid(run_directory) == pid:
        if time.monotonic() > deadline:
            raise EnvironmentFailure(f"mtpd (pid {pid}) has not stopped in time; kill -9 {pid} would leave no harm")
        time.sleep(0.05)
    print(f"stopped (pid {pid})")
    return 0
