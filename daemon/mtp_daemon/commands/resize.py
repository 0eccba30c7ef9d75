"""`mtpd resize`: another size of the pool, while answers go on."""

import argparse

from mtp_daemon.commands.asking import add_run_dir, service
from mtp_daemon.sizes import parse_pool


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="SIZE", help="4GiB, 25%% of all experts, or auto; at most the size at start")
    add_run_dir(parser)


def run(args: argparse.Namespace) -> int:
    parse_pool(args.pool)
    with service(args.run_dir, "mtpd resize") as client:
        result = client.resize(args.pool)
    print(f"the pool has room for {sum(result['slots'])} experts now")
    return 0
