"""`mtpd resize`: another size of the pool, while answers go on."""

import argparse
from pathlib import Path

from mtp_client.client import Client
from mtp_client.errors import ClientError, NotRunning
from mtp_daemon.errors import NotServing, UserError
from mtp_daemon.sizes import parse_pool


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="SIZE", help="4GiB, 25%% of all experts, or auto; at most the size at start")
    parser.add_argument("--run-dir", type=Path, metavar="D", help="the service's run directory (default: the user's)")


def run(args: argparse.Namespace) -> int:
    parse_pool(args.pool)
    try:
        with Client(args.run_dir, name="mtpd resize") as client:
            result = client.resize(args.pool)
    except NotRunning as error:
        raise NotServing(str(error)) from error
    except ClientError as error:
        raise UserError(str(error)) from error
    print("slots a bank now:", *result["slots"])
    return 0
