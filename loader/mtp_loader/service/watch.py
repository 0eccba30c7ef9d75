"""Who else listens to what goes on: the prefetching, the statistics kept on disk, and the recordings of routing.

All but the recent routing in memory may be absent. Nothing they do, and no disk they fill, changes what the engine is
answered.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from mtp_loader.policy.interface import Event
from mtp_loader.pool.readers import FillResult
from mtp_loader.pool.slots import SlotTable
from mtp_loader.predict.memory import load, save
from mtp_loader.replay.recording import Recorder, entry_of
from mtp_loader.service.foresight import Foresight
from mtp_loader.service.recent import RecentRouting
from mtp_loader.service.settings import LoaderSettings
from mtp_protocol.expert_messages import Fed, Hint, Used
from mtp_protocol.geometry import Geometry

log = logging.getLogger(__name__)

SAVE_S = 600.0  # how often statistics are written, if there is anything new


class Watch:
    """Raises DamagedCheckpoint or OSError where a recording cannot be gone on with."""

    def __init__(
        self, geometry: Geometry, settings: LoaderSettings, model: str, table: Callable[[], SlotTable | None]
    ) -> None:
        self.foresight: Foresight | None = None
        self.recent = RecentRouting(geometry, model)
        self._geometry, self._table = geometry, table
        self._path: Path | None = None
        self._save_at = time.monotonic() + SAVE_S
        self._forwards = 0
        self._warm = settings.warm_start and settings.prefetch
        self._knows = False  # statistics of an earlier run
        self._statistics = ""
        if settings.prefetch:
            self._statistics = "statistics are kept nowhere: state_dir is off"
            self.foresight = Foresight(geometry, self._open_table, settings.threads, time.monotonic)
            if settings.state_dir is not None:
                self._path = settings.state_dir / f"routing-{geometry.fingerprint[:16]}.npz"
                self._load(self.foresight)
        self._recorder = None
        if settings.record_routing is not None:
            self._recorder = Recorder(settings.record_routing, geometry, model)

    def _load(self, foresight: Foresight) -> None:
        assert self._path is not None
        why = load(foresight.predictor, self._geometry.fingerprint, self._path)
        self._knows = why is None
        self._statistics = why or f"statistics taken from {self._path}"
        log.info("%s", self._statistics)

    def _open_table(self) -> SlotTable:
        table = self._table()
        assert table is not None  # whoever foresees anything has heard of an engine, which greets an open pool
        return table

    # -- what goes on ----------------------------------------------------------------------------------------------

    def on_greeting(self) -> None:
        """An engine has greeted: slots may be written. The first time, a cold pool begins to fill."""
        if self._warm:
            self._warm = False
            self._guarded(lambda foresight: foresight.warm())
            self.pump()

    def on_hint(self, hint: Hint) -> None:
        self._guarded(lambda foresight: foresight.on_hint(hint))
        self._record(lambda recorder: recorder.hint(hint))

    def on_fed(self, fed: Fed) -> None:
        self._guarded(lambda foresight: foresight.on_fed(fed))

    def on_need(self, events: Sequence[Event], asked: Collection[int]) -> None:
        """See `Foresight.on_need`."""
        self._guarded(lambda foresight: foresight.on_need(events, asked))

    def on_used(self, used: Used, late: Sequence[Event]) -> None:
        """A forward is over; `late` are the layers that no Need told of."""
        self._forwards += 1
        self._guarded(lambda foresight: foresight.on_used(used, late))
        entry = entry_of(used)
        self.recent.add(entry, time.monotonic())
        self._record(lambda recorder: recorder.used(entry))

    def on_evicted(self, layer: int, expert: int) -> None:
        self._guarded(lambda foresight: foresight.on_evicted(layer, expert))

    def on_cancelled(self, layer: int, expert: int) -> None:
        self._guarded(lambda foresight: foresight.on_cancelled(layer, expert))

    def on_read(self, result: FillResult) -> None:
        self._guarded(lambda foresight: foresight.on_read(result))

    @property
    def hinting(self) -> bool:
        """Whether the engine's guesses are of use now."""
        return self.foresight is not None and self.foresight.active

    def pump(self) -> None:
        """Begins what there is room and time for."""
        self._guarded(lambda foresight: foresight.pump())

    def _guarded(self, call: Callable[[Foresight], None]) -> None:
        """Prediction is not worth an answer: a bug in it ends it, with a line in the log and in the facts."""
        if self.foresight is None:
            return
        try:
            call(self.foresight)
        except Exception:  # what reads ahead must not end what is being answered
            log.exception("nothing is read ahead any more")
            self.foresight, self._statistics = None, "given up after an error: see the loader's log"
            if (table := self._table()) is not None:
                table.want_spare({})
                for bank in table.banks:
                    bank.announced.clear()

    # -- the disk --------------------------------------------------------------------------------------------------

    def _record(self, write: Callable[[Recorder], None]) -> None:
        if self._recorder is None:
            return
        try:
            write(self._recorder)
        except OSError as error:
            log.error("routing is recorded no further: %s", error)
            self._recorder.close()
            self._recorder = None

    def tick(self) -> None:
        """Writes the statistics when it is time and there are new ones."""
        self._guarded(lambda foresight: foresight.tick())
        if time.monotonic() >= self._save_at:
            self._save_at = time.monotonic() + SAVE_S
            self.save()

    def save(self) -> None:
        """A full disk costs the statistics and a line in the log."""
        if self.foresight is None or self._path is None or not self._forwards:
            return
        self._forwards = 0
        try:
            save(self.foresight.predictor, self._geometry.fingerprint, self._path)
        except OSError as error:
            log.error("statistics were not written: %s", error)

    def close(self) -> None:
        self.save()
        if self._recorder is not None:
            self._recorder.close()

    def facts(self) -> dict[str, Any]:
        """`learned`: statistics of an earlier run were taken; `statistics` says which, or why none. `warm` is 0 until a
        warm start that is to come has begun. Without prediction: why there is none any more.
        """
        if self.foresight is None:
            return {"statistics": self._statistics} if self._statistics else {}
        coming = {"warm": 0.0} if self._warm and self._knows else {}
        return self.foresight.facts() | coming | {"statistics": self._statistics, "learned": self._knows}

    def statistics(self) -> dict[str, Any]:
        return {} if self.foresight is None else {"prediction": self.foresight.statistics()}
