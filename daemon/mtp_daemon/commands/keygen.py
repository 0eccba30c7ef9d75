"""`mtpd keygen`: CURVE keys, for a service on TCP and for the clients that may use it."""

import argparse
import os
import re
from pathlib import Path

import zmq

from mtp_daemon.errors import UserError
from mtp_daemon.front.listen import client_directory, key_directory, server_key
from mtp_protocol.key_files import PUBLIC_SUFFIX, SECRET_SUFFIX, KeyFileError, write_key

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")

DESCRIPTION = """\
Make the service's key pair (once), and with --client NAME a pair for a client, whose public half goes on the allow
list (DIR/clients). A client that made its own pair needs only its public .key file put there. Removing that file
shuts the client out at its next connection; nothing needs a restart.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument("--key-dir", metavar="DIR", help="key directory (default: keys, beside the configuration file)")
    parser.add_argument("--client", metavar="NAME", help="also make a pair for this client and allow it")


def run(args: argparse.Namespace) -> int:
    if args.client is not None and (_NAME.fullmatch(args.client) is None or args.client == "server"):
        raise UserError(f"a client's name is letters, digits, dots, dashes and no more than 64; not {args.client!r}")
    directory = key_directory(args.key_dir)
    _make_private(directory)
    _make_private(client_directory(directory))
    secret = server_key(directory)
    try:
        if secret.exists():
            print(f"keeping {secret}")
        else:
            _make_pair(secret, secret.with_suffix(PUBLIC_SUFFIX))
        if args.client is not None:
            mine = directory / f"{args.client}{SECRET_SUFFIX}"
            _make_pair(mine, client_directory(directory) / f"{args.client}{PUBLIC_SUFFIX}")
            _explain(directory, mine)
    except KeyFileError as error:
        raise UserError(str(error)) from error
    return 0


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(directory, 0o700)
    except OSError as error:
        raise UserError(f"cannot keep keys in {directory}: {error.strerror}") from error


def _make_pair(secret_path: Path, public_path: Path) -> None:
    for path in (secret_path, public_path):
        if path.exists():
            raise KeyFileError(f"{path} is there already: remove it first, if it is to be replaced")
    public, secret = zmq.curve_keypair()
    write_key(secret_path, public, secret)
    write_key(public_path, public)
    print(f"wrote   {secret_path} (secret)\nwrote   {public_path}")


def _explain(directory: Path, secret: Path) -> None:
    print(
        f"move {secret.name} to the client's machine (and away from here), with a copy of server{PUBLIC_SUFFIX}; then\n"
        f"  mtp-client --server tcp://HOST:PORT --server-key server{PUBLIC_SUFFIX} --key {secret.name} PROMPT"
    )
