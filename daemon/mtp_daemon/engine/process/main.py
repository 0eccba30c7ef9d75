"""`python -m mtp_daemon.engine`: what the front starts. Not for people."""

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

# Tokenizers and models are read from the model's directory and nowhere else; this must stand before their import.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import zmq

from mtp_daemon.engine.process.engine import run_engine
from mtp_daemon.engine.process.front_link import FrontLink
from mtp_daemon.engine.process.mailbox import Activity, Mailbox
from mtp_protocol.lifeline import set_parent_death_signal


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    set_parent_death_signal()
    signals = _catch_signals()
    lifeline = socket.socket(fileno=args.lifeline)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    mailbox, activity = Mailbox(), Activity()
    identity = f"engine-{args.epoch}".encode()
    front = FrontLink(context, args.front, identity, lifeline, mailbox, activity, signals)
    code = run_engine(context, front, mailbox, activity, args.model, args.epoch, args.settings)
    front.close()
    lifeline.close()
    context.destroy(linger=0)  # a socket that an error left open would keep the process waiting for ever
    return code


def _catch_signals() -> int:
    """SIGTERM is the I/O thread's: it reads the descriptor returned, whatever MLX is doing. Ctrl-C is the front's."""
    readable, writable = socket.socketpair()
    readable.setblocking(False)
    writable.setblocking(False)
    signal.set_wakeup_fd(writable.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return readable.detach()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mtp_daemon.engine", description=__doc__)
    parser.add_argument("--lifeline", type=int, required=True, help="descriptor of the socket to the front")
    parser.add_argument("--front", required=True, help="the front's ZeroMQ address")
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--socket-dir", type=Path, help="of the sockets; only the loader binds one there")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--settings", default="{}", help="JSON")
    return parser.parse_args(argv)
