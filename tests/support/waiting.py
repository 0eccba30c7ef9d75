"""Waiting for what another thread or process does: a condition and a deadline, never a bare sleep."""

import threading
import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 60.0


def until(what: str, condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """The condition's first true value; fails the test, saying `what` was waited for, when there is none in time."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {deadline_s:g} s"
        time.sleep(0.005)
    return value


def when(condition: Callable[[], bool], action: Callable[[], None]) -> threading.Thread:
    """In another thread: do `action` as soon as `condition` holds."""

    def wait() -> None:
        until("what the action waits for", condition)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread
