"""`mtpd install-service`: the service starts with the user's session."""

import argparse
import json

from mtp_daemon.config import add_flags, flags_given, load_settings
from mtp_daemon.services.install import install
from mtp_loader.store.resolve import resolve_model


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="as for mtpd serve")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    given = flags_given(args)
    settings = load_settings(None, given)
    values = {**given, "model": str(resolve_model(settings.model).resolve())}
    # JSON's strings, numbers and truth values are TOML's.
    lines = [f"{name} = {json.dumps(value if value is not None else 'auto')}" for name, value in values.items()]
    return install("# Settings of the mtpd service; `mtpd serve --help-all` lists them.\n" + "\n".join(lines) + "\n")
