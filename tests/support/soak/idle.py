"""What must hold whenever every client is silent: nothing in the books, nothing under way, nobody died by himself."""

from typing import Any

from support.soak.service import ROLES, Service, Wrong, until
from support.soak.trouble import Trouble

SETTLED_S = 30.0


def check(service: Service, trouble: Trouble) -> dict[str, Any]:
    """The status it was checked on. Raises Wrong naming what does not hold."""
    try:
        status: dict[str, Any] = until("the service is idle", lambda: _settled(service.status()), SETTLED_S)
    except Wrong as error:
        raise Wrong(f"{error}: {service.status()}") from error
    for name in ("broken_invariant", "bad_messages", "bad_messages_of_children", "refusing"):
        if status[name]:
            raise Wrong(f"{name}: {status[name]}")
    requests, experts = status["requests"], status["experts"]
    if requests["failed"]:
        raise Wrong(f"{requests['failed']} requests failed")
    if requests["accepted"] != requests["finished"] + requests["cancelled"]:
        raise Wrong(f"requests do not add up: {requests}")
    if experts["read_failures"]:
        raise Wrong(f"{experts['read_failures']} reads failed")
    for role in ROLES:
        child = status["children"][role]
        if child["restarts"] != trouble.kills[role]:
            raise Wrong(
                f"the {role} was killed {trouble.kills[role]} times and started again {child['restarts']} times: "
                f"{child['last_error']}; {child['last_lines']}"
            )
    return status


def _settled(status: dict[str, Any]) -> dict[str, Any] | None:
    """Both ready, nothing asked, nothing read or given up, every request a hit or a miss: None while that is not so.

    An engine reports its last forward when it has been idle for a moment.
    """
    queue, experts = status["queue"], status["experts"]
    ready = all(child["state"] == "ready" for child in status["children"].values())
    quiet = queue["running"] is None and queue["waiting"] == 0
    if not ready or not quiet or not experts.get("slots"):
        return None
    still = experts["filling"] == 0 and experts["recalled"] == 0
    whole = experts["resident"] + experts["free"] == experts["slots"]
    return status if still and whole and experts["requests"] == experts["hits"] + experts["misses"] else None
