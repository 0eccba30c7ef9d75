"""What keeps a Python process from growing for hours: its garbage is collected whole now and then.

CPython keeps up to 2,000 freed tuples of each length for later use. `tuple(…)` over anything without a length frees
more of them than it takes, so these lists go on filling for hours, by megabytes, in a process that leaks nothing; only
a whole collection empties them, and those are rare where most objects live long. What lives since the start is set
aside, so that a whole collection looks at what came since and takes about a millisecond.
"""

import gc

EVERY_S = 60.0


class Housekeeping:
    """One per process; made once everything that stays has been made."""

    def __init__(self, now: float) -> None:
        """`now` is in seconds, of any clock that does not go back."""
        gc.collect()
        gc.freeze()
        self._at = now + EVERY_S

    def look(self, now: float) -> bool:
        """Call often, where a millisecond does not matter; whether it was time for a collection."""
        if now < self._at:
            return False
        gc.collect()
        self._at = now + EVERY_S
        return True
