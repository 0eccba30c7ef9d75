"""The stream of experts through one engine: what every forward opens, and what its MoE layers ask.

`forward` surrounds every forward of trunk or head; `settle` says that its results have been read, or waits
for them. What a forward routed to is reported while the next one computes, or when the engine has nothing else to do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import zmq
from numpy.typing import NDArray

from mtp_daemon.engine.errors import EngineBug
from mtp_daemon.engine.expert_link import ExpertLink
from mtp_daemon.engine.expert_planes import ExpertPlanes
from mtp_daemon.engine.link_limits import Limits
from mtp_daemon.engine.loader_life import LoaderLife
from mtp_daemon.engine.loader_socket import LoaderSocket
from mtp_daemon.engine.pool_view import PoolView
from mtp_daemon.engine.residency import Residency
from mtp_daemon.engine.routing import DECODE, PROMPT, Forward, LayerRouting, Ran, distinct
from mtp_daemon.engine.slot_verifier import SlotVerifier
from mtp_daemon.engine.stream_face import ResidentStream, Stream
from mtp_daemon.engine.stream_stats import StreamStats
from mtp_protocol.expert_messages import Fed, Hello, Resident
from mtp_protocol.geometry import Geometry, PoolLayout

__all__ = ["DECODE", "PROMPT", "ExpertStream", "ResidentStream", "Stream", "StreamSettings"]


@dataclass(frozen=True)
class StreamSettings:
    """`hints_ahead`: for how many layers ahead a layer guesses experts (0: none; each guess costs a norm and a gate).

    A guess names each token's top-k of that layer; a prompt is not guessed at. `verify_slots`: hash every slot at use
    against what the store says (debugging; slow).
    """

    hints_ahead: int = 0
    verify_slots: bool = False
    limits: Limits = field(default_factory=Limits)


class ExpertStream:
    """A pool that a loader fills, seen by the model's MoE layers. Created, used and closed by the MLX thread."""

    def __init__(
        self,
        context: "zmq.Context[Any]",
        life: LoaderLife,
        engine_epoch: int,
        geometry: Geometry,
        layout: PoolLayout,
        region_fd: int,
        settings: StreamSettings | None = None,
        verifier: SlotVerifier | None = None,
    ) -> None:
        """Maps the pool; `region_fd` may be closed afterwards. Says nothing to the loader before `join`.

        Raises RequestRefused where this MLX cannot look at shared memory, OSError from mapping it.
        """
        self.settings = settings or StreamSettings()
        self.geometry = geometry
        self._source_bytes = {y.layer: geometry.banks[y.bank].source_bytes for y in geometry.layers}
        self.top_k = {y.layer: y.top_k for y in geometry.layers}
        self.stats = StreamStats()
        self.residency = Residency(geometry, layout)
        self._view = PoolView(region_fd, geometry, layout)
        self.planes = [ExpertPlanes(b, v) for b, v in zip(geometry.banks, self._view.banks, strict=True)]
        self.verifier = verifier if self.settings.verify_slots else None
        socket = LoaderSocket(context, life, engine_epoch, self.stats)
        hello = Hello(geometry.fingerprint, layout.generation)
        self.link = ExpertLink(socket, self.residency, hello, self.finish, self.stats, self.settings.limits)
        self.link.on_rejoin = self._forget_told
        self.link.on_arrived = self._count_arrived
        self.dry = False  # layers give zeros of the right shape: to learn the caches' sizes without a loader
        self._tables: dict[int, tuple[int, mx.array]] = {}
        self._step = 0
        self._now: Forward | None = None
        self._unreported: list[Forward] = []
        # Arrays that read the pool and may not have been computed. A forward's layers are a chain (each layer's rows
        # come from the one before), so its last layer's rows stand for all of it.
        self._tail: mx.array | None = None
        self._tails: list[mx.array] = []

    def join(self) -> None:
        """Wait for the loader and learn what is resident. Raises LoaderTimeout."""
        self.link.join()

    def close(self) -> None:
        """Leave the loader, also where nothing can be settled any more, and give the pool's memory back."""
        try:
            self.settle()
            self.report()
        finally:
            self.link.leave()
        self._view.close()

    def idle(self, fd: int, timeout_s: float) -> None:
        """Between requests: wait until `fd` is readable or the loader has something to say, and answer that."""
        self.report()
        self.link.wait(fd, timeout_s)
        self.settle()

    # -- what decoding asks ----------------------------------------------------------------------------------------

    @property
    def all_resident(self) -> bool:
        return self.residency.all_whole and self.verifier is None

    def announce(self, tokens: Sequence[int]) -> None:
        """See `Stream.announce`. Nothing is sent where nothing can miss, or where no guesses are wanted."""
        if self.settings.hints_ahead and self.link.hinting and not self.residency.all_whole:
            self.link.send(Fed(self._step + 1, tuple(tokens)))

    @contextmanager
    def forward(self, tokens: Sequence[int], phase: int) -> Iterator[None]:
        """See `Stream.forward`."""
        if self._now is not None:
            raise EngineBug("a forward began inside another")
        self.link.poll()
        self._report(keep=1)  # the one before the last: its results have long been read
        self._step += 1
        now = self._now = Forward(self._step, phase, tokens)
        self.stats.forwards += 1
        self.stats.tokens += len(now.tokens)
        try:
            yield
            self._unreported.append(now)
        finally:
            self._now = None
            self._keep_tail()

    def settle(self) -> None:
        """See `Stream.settle`. Cheap when the results have been read."""
        self.finish()
        for forward in self._unreported:
            forward.count_whole(self.stats)
        self.link.poll()

    def report(self) -> None:
        """Tell the loader of every forward that ended. Between forwards that is done by the next one's first layer."""
        self._report(keep=0)

    def finish(self) -> None:
        """Wait for every graph that reads the pool."""
        self._keep_tail()
        if self._tails:
            mx.eval(self._tails)
            self._tails.clear()
        self.residency.finished()

    def _keep_tail(self) -> None:
        if self._tail is not None:
            self._tails.append(self._tail)
            self._tail = None

    def _forget_told(self) -> None:
        """A new loader: it hears of what runs from here on. Were it told of hits and misses whose requests the dead one
        heard of, its books would not add up. Every graph has ended.
        """
        for forward in (*self._unreported, *((self._now,) if self._now is not None else ())):
            forward.restart(self.stats)
        self._unreported.clear()

    def _count_arrived(self, experts: Sequence[Resident], asked: bool) -> None:
        nbytes = sum(self._source_bytes[told.layer] for told in experts)
        self.stats.bytes_read += nbytes
        if not asked:
            self.stats.prefetched += len(experts)
            self.stats.prefetched_bytes += nbytes

    def _report(self, keep: int) -> None:
        while len(self._unreported) > keep:
            self.link.send(self._unreported.pop(0).used(self.stats))

    # -- what a MoE layer asks -------------------------------------------------------------------------------------

    @property
    def now(self) -> Forward:
        """The forward under way. Raises EngineBug outside of one."""
        if self._now is None:
            raise EngineBug("a layer ran outside `forward`")
        return self._now

    def events(self, layer: int, experts: Sequence[int]) -> tuple[Ran, ...]:
        """Every layer that ran since the last Need, earlier forwards' included, and last the one that runs now."""
        now = self.now
        ran = [event for forward in (*self._unreported, now) for event in forward.untold()]
        return (*ran, now.tell_next(layer, experts))

    def device_table(self, layer: int) -> mx.array | None:
        """Slot of every expert, `[experts]` uint32, where all of them are resident; its slots count as read."""
        if not self.residency.whole(layer) or self.verifier is not None:
            return None
        slots = self.residency.table(layer)
        self.residency.read(layer, slots)
        version = self.residency.versions[layer]
        known = self._tables.get(layer)
        if known is None or known[0] != version:
            known = self._tables[layer] = (version, mx.array(slots.astype(np.uint32)))
        return known[1]

    def host_ids(self, indices: mx.array, beside: Sequence[mx.array]) -> NDArray[Any]:
        """The one host read of a layer: router ids. All earlier graphs end here.

        `beside` is what else the layer computes whatever the ids say: the device goes on with it while the host looks.
        """
        self._keep_tail()
        mx.async_eval(indices, *self._tails)  # type: ignore[no-untyped-call]
        if beside:
            mx.async_eval(*beside)  # type: ignore[no-untyped-call]
        self._report(keep=0)  # the forward before this one, while the device has something to do
        mx.eval(indices, *self._tails)
        self._tails.clear()
        self.residency.finished()
        self.stats.host_reads += 1
        return np.array(indices, copy=False)

    def started(self, part: mx.array) -> None:
        """A part of a layer's rows is being computed; it is not yet part of the layer's result."""
        self._tails.append(part)

    def built(self, layer: int, ids: Any, weights: mx.array | None, rows: mx.array, missed: int | None) -> None:
        """`rows` is a layer's result. `missed` is None where the ids have not been read."""
        now = self.now
        now.layers.append(LayerRouting(layer, ids, weights, missed is not None))
        if missed is not None:
            now.count(self.stats, layer, distinct(ids), missed)
            self._tails.clear()  # parts of this layer: the rows come from them
        self._tail = rows
