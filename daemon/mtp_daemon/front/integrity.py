"""The invariants of sessions, cheap enough to check whenever the service is idle."""

from mtp_daemon.errors import DaemonBug
from mtp_daemon.front.sessions import Sessions


def check(sessions: Sessions) -> None:
    """Raises DaemonBug, naming the one that does not hold."""
    requests, running = sessions.requests.values(), sessions.running
    live = {r.id for r in requests if r.state != "ended"}
    placed = [r.id for r in sessions.queue.order()] + ([running.id] if running is not None else [])
    if len(set(placed)) != len(placed) or set(placed) != live:
        raise DaemonBug(f"{len(live)} live requests, but {len(placed)} wait or run")
    if any((r.terminal is not None) != (r.state == "ended") for r in requests):
        raise DaemonBug("a request has a terminal message and has not ended, or the reverse")
    if running is not None and sessions.engine_has != running.id:
        raise DaemonBug("a request runs that the engine does not have")
    if any(r.state == "ended" and not r.followers and r.keep_until is None for r in requests):
        raise DaemonBug("an ended request is held though nobody follows or keeps it")
