"""The loader's main thread: one poller over both sockets and the wake-up descriptor, and a beat each second."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

import zmq

from mtp_loader.pool.expert_reader import ExpertReader
from mtp_loader.pool.readers import ReaderThreads
from mtp_loader.pool.region import PoolRegion
from mtp_loader.predict.pins import SHARES
from mtp_loader.service.calibration import Calibration
from mtp_loader.service.lifeline import Lifeline
from mtp_loader.service.pool_service import PoolService
from mtp_loader.service.settings import LoaderSettings
from mtp_loader.service.sockets import ExpertSocket, FrontSocket
from mtp_loader.service.stats import facts, statistics
from mtp_protocol.geometry import PoolLayout
from mtp_protocol.housekeeping import Housekeeping
from mtp_protocol.loader_messages import (
    Beat,
    Calibrate,
    Calibrated,
    CalibrateStop,
    EngineDead,
    EngineUp,
    Failed,
    Pin,
    Pinned,
    Pool,
    Ready,
    Resize,
    Resized,
    Stats,
    StatsRequest,
    Stop,
    ToLoader,
)
from mtp_protocol.wake import Wake

log = logging.getLogger(__name__)

BEAT_S = 1.0
_FILE_CHECK_BEATS = 5
_BATCH = 64  # engine messages a turn, so that the front is heard too


class LoaderLoop:
    """Owns the experts' socket, the reader threads and the pool service."""

    def __init__(
        self,
        context: "zmq.Context[Any]",
        front: FrontSocket,
        lifeline: Lifeline,
        wake: Wake,
        reader: ExpertReader,
        settings: LoaderSettings,
        model: str,
        directory: Path,
        epoch: int,
    ) -> None:
        self._front, self._lifeline, self._wake = front, lifeline, wake
        self._reader, self._settings = reader, settings
        self._experts = ExpertSocket(context, directory, epoch)
        self._threads = ReaderThreads(reader, settings.threads, wake)
        self._service = PoolService(reader.source.geometry, settings, model, self._threads, self._experts.send)
        self._service.on_resized = self._resized
        self._layout: PoolLayout | None = None  # announced; its region may still be on its way
        # What was asked for and is not answered: a later resize may overtake one under way.
        self._resizes: list[tuple[int, tuple[int, ...]]] = []
        self._dead = -1  # engines up to this epoch are dead
        self._beats = 0
        self._next_beat = time.monotonic()
        self._stop_at: float | None = None
        self._poller = zmq.Poller()
        for source in (front.socket, self._experts.socket, wake.fileno()):
            self._poller.register(source, zmq.POLLIN)
        self._calibration = Calibration(self._poller, self._calibrated)
        self._house = Housekeeping(time.monotonic())

    def run(self) -> None:
        """Until told to stop and nothing is waited for any more, or the deadline has passed."""
        while not self._finished():
            self._poller.poll(max(0, int((self._next_beat - time.monotonic()) * 1000) + 1))
            self._wake.clear()
            self._service.on_results()
            self._hear_front()
            self._map_region()
            self._hear_engine()
            self._calibration.look()
            if time.monotonic() >= self._next_beat:
                self._beat()

    def stop(self, deadline_s: float) -> None:
        """What is being read and asked for is finished, as far as the deadline allows. May be called by a signal."""
        until = time.monotonic() + deadline_s
        self._stop_at = until if self._stop_at is None else min(self._stop_at, until)

    def close(self) -> bool:
        """False if a reader thread is stuck."""
        self._calibration.close()
        self._experts.close()
        self._service.watch.close()
        return self._threads.stop(deadline_s=1.0)

    def _finished(self) -> bool:
        if self._stop_at is None:
            return False
        return time.monotonic() >= self._stop_at or not (self._service.open and self._service.table.open_tickets)

    # -- the front -------------------------------------------------------------------------------------------------

    def _hear_front(self) -> None:
        for message in self._front.receive():
            self._obey(message)

    def _obey(self, message: ToLoader) -> None:
        match message:
            case Pool(layout):
                self._layout = layout
            case EngineUp(epoch, _pid):
                self._service.engine_up(epoch)
            case EngineDead(epoch):
                self._dead = max(self._dead, epoch)
                if epoch == self._service.engine:
                    self._experts.forget_peer()
                self._service.engine_dead(epoch)
            case Stop(deadline_s):
                self.stop(deadline_s)
            case StatsRequest(ref):
                stats = statistics(self._service, self._reader, self._settings.threads, self._front, self._experts)
                self._front.send(Stats(ref, stats))
            case Pin(ref, experts):
                if self._ready_for(ref):
                    self._front.send(Pinned(ref, self._service.pin(experts)))
            case Calibrate():
                if self._ready_for(message.ref):
                    self._calibrate(message)
            case CalibrateStop(ref):
                self._calibration.stop(ref)
            case Resize(ref, slots):
                if self._ready_for(ref):
                    self._resize(ref, slots)
            case _:
                assert_never(message)

    def _ready_for(self, ref: int) -> bool:
        if not self._service.open:
            self._front.send(Failed("environment", "the loader has no pool yet", ref))
        return self._service.open

    def _calibrate(self, message: Calibrate) -> None:
        settings, recent, most = self._settings, self._service.watch.recent, self._service.table.most_pinned
        shares = message.shares or tuple(share for share in SHARES if share <= most)
        refusal = None
        if self._calibration.running:
            refusal = "a calibration is under way already"
        elif not shares or max(shares) > most:
            refusal = f"at most {most:.2f} of this pool may be pinned; pin_share and the pool's size set that"
        if refusal is not None:
            self._front.send(Failed("bad_request", refusal, message.ref))
            return
        slots = dict(enumerate(self._service.table.limits))
        job = {"policy": settings.policy, "slots": slots, "reserve": settings.reserve, "shares": shares}
        since = time.monotonic() - message.last_s if message.last_s is not None else 0.0
        try:
            self._calibration.begin(message.ref, lambda file: recent.write(file, since), job)
        except OSError as error:
            self._front.send(Failed("environment", f"the calibration cannot be started: {error}", message.ref))

    def _calibrated(self, ref: int, answer: Mapping[str, Any] | None, why: str) -> None:
        if answer is None:
            self._front.send(Failed("environment", why, ref))
        elif refused := answer.get("refused"):
            self._front.send(Failed("bad_request", str(refused), ref))
        else:
            result = dict(answer)
            result["pinned"] = self._service.pin(tuple((layer, expert) for layer, expert in result.pop("experts")))
            self._front.send(Calibrated(ref, result))

    def _resize(self, ref: int, slots: tuple[int, ...]) -> None:
        self._resizes.append((ref, slots))
        if (reason := self._service.resize(slots)) is not None:
            self._resizes.remove((ref, slots))
            self._front.send(Failed("bad_request", reason, ref))

    def _resized(self, limits: tuple[int, ...]) -> None:
        for ref, slots in self._resizes:
            if slots == limits:
                self._front.send(Resized(ref, limits))
            else:
                text = f"a later resize overtook this one: the pool has room for {sum(limits)} experts now"
                self._front.send(Failed("environment", text, ref))
        self._resizes.clear()

    def _map_region(self) -> None:
        """Maps a region once both its descriptor and its layout are here."""
        while self._lifeline.regions and self._layout is not None:
            generation, nbytes, fd = self._lifeline.regions[0]
            if generation != self._layout.generation:
                if generation > self._layout.generation:
                    return
                log.warning("region %d was replaced before it was used", generation)
                self._lifeline.take()
                continue
            self._service.open_pool(PoolRegion(fd, nbytes, self._reader.source.geometry, self._layout))
            self._lifeline.take()
            self._layout = None
            self._front.send(Ready(self._experts.address))

    # -- the engine and the clock ----------------------------------------------------------------------------------

    def _hear_engine(self) -> None:
        for _ in range(_BATCH):
            message = self._experts.receive(self._service.engine if self._service.open else None, self._dead)
            if message is None:
                return
            self._service.on_engine(message)

    def _beat(self) -> None:
        now = time.monotonic()
        self._next_beat = max(self._next_beat + BEAT_S, now)
        self._beats += 1
        self._service.tick()
        self._house.look(now)
        self._front.send(Beat(facts(self._service)))
        if self._beats % _FILE_CHECK_BEATS == 0:
            for file in self._reader.files:
                if (change := file.change()) is not None:
                    log.warning("%s", change)
