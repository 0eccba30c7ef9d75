"""The service's account of itself: one nested map, for `mtpd status` and for scripts."""

import os
from pathlib import Path
from typing import Any

from mtp_daemon.front.announce import resident_share
from mtp_daemon.front.clients import Clients
from mtp_daemon.front.lineup import Lineup
from mtp_daemon.front.sessions import Sessions
from mtp_daemon.front.supervise import Supervisor


def shown(path: Path) -> str:
    """A path as text that can travel: a name that is not UTF-8 loses its odd bytes."""
    return os.fsencode(path).decode("utf-8", "replace")


def service_status(lineup: Lineup, sessions: Sessions, clients: Clients) -> dict[str, Any]:
    """Everything but what the front's own loop knows (pid, uptime, phase)."""
    hits, misses = lineup.loader.facts.get("hits"), lineup.loader.facts.get("misses")
    status: dict[str, Any] = {
        "pool": _pool(lineup),
        "experts": dict(lineup.loader.facts),
        "engine_facts": {**lineup.facts, **lineup.engine.facts},
        "queue": {
            # Enough to find it in the log. The whole id would let whoever asks cancel it, or read its answer.
            "running": None if sessions.running is None else sessions.running.id.hex()[:8],
            "running_tokens": 0 if sessions.running is None else len(sessions.running.log),
            "waiting": len(sessions.queue),
            "held": len(sessions.requests),
            "clients": len(clients),
        },
        "requests": dict(sessions.counts),
        "children": {child.role: _child(child) for child in lineup.children},
        "bad_messages_of_children": lineup.bad_messages,
        "refusing": None if sessions.refusal is None else str(sessions.refusal),
    }
    if isinstance(hits, int) and isinstance(misses, int) and hits + misses:
        status["hit_rate"] = hits / (hits + misses)
    return status


def _pool(lineup: Lineup) -> dict[str, Any] | None:
    if lineup.layout is None or lineup.geometry is None:
        return None
    geometry, layout = lineup.geometry, lineup.layout
    return {
        "bytes": layout.nbytes,
        "slots": [bank.slots for bank in layout.banks],
        "share": round(resident_share(geometry, layout), 4),
        "minimum_bytes": geometry.minimum_bytes,
        "expert_bytes": geometry.expert_bytes,
        "model_type": geometry.model_type,
        "packed": geometry.packed,
        "fingerprint": geometry.fingerprint,
        "worst_bytes_per_token": geometry.worst_bytes_per_token,
    }


def _child(child: Supervisor) -> dict[str, Any]:
    return {
        "state": child.state,
        "pid": child.process.pid if child.process is not None else None,
        "epoch": child.epoch,
        "restarts": child.restarts.total,
        "last_error": child.last_error or None,
        "last_lines": list(child.log.lines)[-5:],
    }
