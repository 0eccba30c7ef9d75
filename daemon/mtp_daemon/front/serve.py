"""`mtpd serve`: one run directory, one daemon, in the foreground."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from mtp_daemon.config import Settings
from mtp_daemon.front.front import Front
from mtp_daemon.front.recruit import Program, python_module
from mtp_daemon.front.run_lock import RunLock
from mtp_daemon.front.signals import StopSignals


def serve(
    settings: Settings,
    model: Path,
    run_directory: Path,
    say: Callable[[str], None],
    program: Program = python_module,
) -> None:
    """Run the service until it is stopped. Raises DaemonError when it cannot start; never detaches."""
    # Sockets, logs and statistics, the children's too, are this user's alone.
    os.umask(0o077)
    lock = RunLock(run_directory)
    with contextlib.closing(lock), contextlib.closing(StopSignals()) as signals:
        Front(settings, model, lock, signals, say, program).run()
