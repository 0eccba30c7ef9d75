"""`mtpd serve`: the service itself."""

import argparse
import logging
from pathlib import Path

from mtp_daemon.config import add_flags, flags_given, load_settings
from mtp_daemon.errors import UserError
from mtp_daemon.services.own_log import log_handler
from mtp_daemon.state_directory import state_directory, unusable
from mtp_loader.store.resolve import resolve_model
from mtp_protocol.run_directory import default_run_directory

DESCRIPTION = """\
Run the service on MODEL, in the foreground, until Ctrl-C, SIGTERM or `mtpd stop`.

MODEL is a directory (an mlx-lm checkpoint, or a packed store written by mtp-loader pack), a Hugging Face id that
mtp-loader fetch has brought into the local cache, or demo, the small model that is shipped with mtpd.

What the loader learns of a model's routing is kept (less than 1 MB a model) in $XDG_STATE_HOME/mtpd, else in
~/.local/state/mtpd, on a Mac in ~/Library/Application Support/mtpd/state: a service starts warm with it. --state-dir
names another place, --state-dir off keeps nothing.

Settings come from --config FILE (TOML, name = value, underscores or dashes) and from the flags below, which win.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, metavar="MODEL", help="may be in the file too")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file")
    parser.add_argument("--run-dir", type=Path, metavar="D", help="where sockets and lock lie (default: the user's)")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    # Imported here: `mtpd --help` and `mtpd status` need no part of the front.
    from mtp_daemon.front.serve import serve

    logging.basicConfig(level=logging.INFO, handlers=[log_handler()])
    settings = load_settings(args.config, flags_given(args))
    if settings.model is None:
        raise UserError("no model: give a directory or an id, as in `mtpd serve demo`, or set model in the file")
    state = state_directory(settings.state_dir)
    if state is not None and (why := unusable(state)) is not None:
        _say(f"what is learned of the model is not kept: {why}; --state-dir names another place, or off")
    settings["state_dir"] = None if state is None else str(state)
    run_directory = args.run_dir if args.run_dir is not None else default_run_directory()
    serve(settings, resolve_model(settings.model).resolve(), run_directory, _say)
    return 0


def _say(text: str) -> None:
    print(text, flush=True)
