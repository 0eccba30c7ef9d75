"""How long the engine waits for its loader."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Seconds. `retry_s` without news a demand is asked again with a new ticket (a reply may be lost); after
    `deadline_s` it fails. `loader_s` is how long a dead loader may take to come back.
    """

    retry_s: float = 5.0
    deadline_s: float = 60.0
    loader_s: float = 60.0
