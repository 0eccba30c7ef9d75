"""`python -m mtp_loader.service`: arguments, start, and how the process ends.

Exit codes: 0 after Stop or SIGTERM (or when the front is gone), 2 the user's mistake, 1 the environment's failure, 70 a
bug of ours. Before any but 0 the front is told why in one `Failed`.
"""

import argparse
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import zmq

from mtp_loader.errors import DamagedCheckpoint, EnvironmentFailure, LoaderError, UserError
from mtp_loader.pool.disk_choice import recall
from mtp_loader.pool.expert_reader import ExpertReader
from mtp_loader.pool.shim import make_preadv
from mtp_loader.service.lifeline import Lifeline
from mtp_loader.service.loop import LoaderLoop
from mtp_loader.service.settings import LoaderSettings, parse_settings
from mtp_loader.service.sockets import FrontSocket
from mtp_loader.store import open_source
from mtp_protocol.lifeline import set_parent_death_signal
from mtp_protocol.loader_messages import Failed, Geometry
from mtp_protocol.wake import Wake

log = logging.getLogger(__name__)

OK, ENVIRONMENT, USER, BUG = 0, 1, 2, 70
_OPEN_FILES = 4096  # macOS starts a process with 256
# Readers that were woken take the interpreter's lock from the main thread after so long, in seconds; by default it is a
# hundred times that, and reads would begin when the bookkeeping of their demand is over.
_SWITCH_S = 5e-5


def main(argv: Sequence[str]) -> int:
    """Runs the loader until it is told to stop."""
    set_parent_death_signal()
    args = _arguments(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    os.umask(0o077)
    wake = Wake()
    lifeline = Lifeline(args.lifeline, wake)
    context: zmq.Context[Any] = zmq.Context()
    front = FrontSocket(context, args.front, args.epoch)
    try:
        return _run(args, context, front, lifeline, wake)
    except (UserError, DamagedCheckpoint) as error:  # neither is better at the next start: for a person to mend
        return _failed(front, "bad_request", error, USER)
    except (EnvironmentFailure, OSError) as error:
        return _failed(front, "environment", error, ENVIRONMENT)
    except Exception as error:  # the process's edge: logged in full, and the front is told
        log.exception("the loader cannot go on")
        return _failed(front, "internal", error, BUG)
    finally:
        front.close()
        context.destroy(linger=500)  # closes the experts' socket too, wherever the start broke off


def _run(
    args: argparse.Namespace, context: "zmq.Context[Any]", front: FrontSocket, lifeline: Lifeline, wake: Wake
) -> int:
    settings = parse_settings(args.settings)
    sys.setswitchinterval(_SWITCH_S)
    _raise_file_limit()
    source = open_source(args.model, widen=settings.widen, head=settings.head)
    if (found := recall(settings.state_dir, source.files[0])) is not None:
        settings = settings.fitted(found)
        log.info("%d readers, direct %s (mtp-bench io found %s)", settings.threads, settings.direct, found)
    reader = ExpertReader(
        source,
        direct=settings.direct != "off",
        verify=settings.verify,
        preadv=make_preadv(settings.shim),
    )
    _check_direct(settings, reader)
    front.send(Geometry(source.geometry))
    loop = LoaderLoop(context, front, lifeline, wake, reader, settings, args.model.name, args.socket_dir, args.epoch)

    def terminate(_signal: int, _frame: FrameType | None) -> None:
        loop.stop(settings.stop_deadline_s)

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the whole group; the front decides
    signal.set_wakeup_fd(wake.write_fd, warn_on_full_buffer=False)
    try:
        loop.run()
    finally:
        signal.set_wakeup_fd(-1)
        stuck = not loop.close()
        reader.close()
    if stuck:  # a thread in the kernel that will not come back: leave without waiting for it
        os._exit(OK)
    return OK


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mtp_loader.service", description=__doc__)
    parser.add_argument("--front", required=True, help="the front's ZeroMQ address")
    parser.add_argument("--lifeline", required=True, type=int, help="inherited descriptor of the lifeline socket")
    parser.add_argument("--epoch", required=True, type=int, help="this loader's number")
    parser.add_argument("--socket-dir", required=True, type=Path, help="where to bind the experts' socket")
    parser.add_argument("--model", required=True, type=Path, help="packed store or checkpoint")
    parser.add_argument("--settings", default="{}", help="JSON object")
    return parser.parse_args(argv)


def _check_direct(settings: LoaderSettings, reader: ExpertReader) -> None:
    cached = [file.path for file in reader.files if file.alignment == 1]
    if settings.direct == "on" and cached and sys.platform == "linux":
        raise EnvironmentFailure(f"{cached[0]}: no O_DIRECT on this file system; use direct = auto")


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _failed(front: FrontSocket, kind: str, error: Exception, code: int) -> int:
    text = str(error) if isinstance(error, LoaderError | OSError) else f"{type(error).__name__}: {error}"
    log.error("%s", text)
    match kind:
        case "bad_request":
            front.send(Failed("bad_request", text))
        case "environment":
            front.send(Failed("environment", text))
        case _:
            front.send(Failed("internal", text))
    return code
