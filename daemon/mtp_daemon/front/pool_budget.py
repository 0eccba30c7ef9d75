"""The pool of one model on this machine now: from what the user asked for to a layout."""

from pathlib import Path

from mtp_daemon.config import Settings
from mtp_daemon.front.memory import Memory, dense_bytes, kv_bytes_per_token, memory_now
from mtp_daemon.front.sizing import Needs, pool_bytes
from mtp_daemon.sizes import parse_pool
from mtp_loader.pool.layout import make_layout
from mtp_protocol.geometry import Geometry, PoolLayout


class PoolBudget:
    """Reads the machine's memory each time it is asked."""

    def __init__(self, settings: Settings, model: Path) -> None:
        self._settings, self._model = settings, model

    def nbytes(self, asked: str, geometry: Geometry, held: int = 0) -> int:
        """`held`: what a running service has of the machine's memory already, which a new size may take again.

        Raises UserError or EnvironmentFailure, saying the minimum.
        """
        kv = kv_bytes_per_token(self._model) * self._settings.context
        needs = Needs(dense=dense_bytes(self._model, geometry), kv=kv)
        now = memory_now()
        return pool_bytes(parse_pool(asked), geometry, Memory(now.total, now.available + held), needs)

    def layout(self, geometry: Geometry) -> PoolLayout:
        """Of the first region, for the size in the settings."""
        return make_layout(geometry, self.nbytes(self._settings.pool, geometry), 1)
