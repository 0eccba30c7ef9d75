"""The engine's life on its MLX thread: start, one request after the other, leave."""

import logging
import time
from pathlib import Path
from typing import Any

import zmq

from mtp_daemon.engine.device import release
from mtp_daemon.engine.errors import EngineBug, EngineError, EngineStopping, Kind
from mtp_daemon.engine.process.answering import answer
from mtp_daemon.engine.process.bring_up import bring_up
from mtp_daemon.engine.process.front_link import FrontLink
from mtp_daemon.engine.process.mailbox import Activity, Mailbox
from mtp_daemon.engine.process.serving import Serving
from mtp_daemon.engine.process.settings import read_settings
from mtp_loader.errors import DamagedCheckpoint, LoaderError, UserError
from mtp_protocol.engine_messages import Failed, Ready
from mtp_protocol.errors import ProtocolError
from mtp_protocol.housekeeping import Housekeeping

log = logging.getLogger(__name__)

IDLE_S = 1.0

LEFT, CANNOT_START, BROKEN, NEW_REGION = 0, 2, 70, 75
"""Exit codes: told to leave; cannot start; a bug of ours; the pool's region was replaced and wants a fresh engine."""


def run_engine(
    context: "zmq.Context[Any]",
    front: FrontLink,
    mailbox: Mailbox,
    activity: Activity,
    model: Path,
    epoch: int,
    settings_json: str,
) -> int:
    """Serves until it is told to stop; the exit code. What cannot start says why in one Failed without a request."""
    try:
        settings = read_settings(settings_json)
        serving, generation = bring_up(context, model, epoch, settings, mailbox, activity)
    except EngineStopping:
        return LEFT
    except (EngineError, LoaderError, OSError) as error:
        if error.__cause__ is not None:  # what a person is told to mend may be a bug of ours after all
            log.warning("the engine cannot start", exc_info=error)
        front.send(Failed(None, _kind_of(error), str(error)))
        return CANNOT_START
    except Exception as error:  # the process's boundary: logged with its traceback, and the front is told
        log.exception("the engine failed to start")
        front.send(Failed(None, "internal", f"{type(error).__name__}: {error}"))
        return BROKEN
    activity.busy = False
    front.send(Ready(serving.facts))
    try:
        return _serve(front, mailbox, activity, serving, generation)
    except EngineStopping:
        return LEFT
    except EngineBug as error:
        log.error("a bug of ours; a fresh engine takes over: %s", error)
        return BROKEN
    finally:
        _leave(serving)


def _kind_of(error: EngineError | LoaderError | OSError) -> Kind:
    """Whose fault it is that the engine cannot start."""
    if isinstance(error, EngineError):
        return error.kind
    # A file that is not what it should be will be no better at the next start: for a person to mend.
    return "bad_request" if isinstance(error, UserError | DamagedCheckpoint) else "environment"


def _serve(front: FrontLink, mailbox: Mailbox, activity: Activity, serving: Serving, generation: int) -> int:
    house = Housekeeping(time.monotonic())
    while True:
        if mailbox.pool_replaced(generation):
            return NEW_REGION
        house.look(time.monotonic())
        start = mailbox.next_start()
        if start is None:
            _idle(serving, mailbox)
            continue
        activity.busy = True
        try:
            answer(start, serving, front.send, mailbox, activity)
        finally:
            activity.busy = False


def _idle(serving: Serving, mailbox: Mailbox) -> None:
    """Recalls and a loader's rise or death are answered between requests too."""
    try:
        serving.stream.idle(mailbox.changes.fileno(), IDLE_S)
    except (EngineBug, EngineStopping):
        raise
    except EngineError as error:
        log.warning("while idle: %s", error)  # the next request meets the same trouble and is answered with it


def _leave(serving: Serving) -> None:
    try:
        serving.stream.close()
    except (EngineError, ProtocolError) as error:
        log.info("while leaving: %s", error)
    finally:
        release()
