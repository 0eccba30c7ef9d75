"""A loader in a thread of the test: real pool, real socket, real files; it follows the slot rules and does as told.

Least recently used experts go first. It reads experts on its own thread, one after the other, and can be scripted:
`drop_fills` loses that many replies, `mute` all of them, `fail` refuses experts, `kill` ends it without a word as
SIGKILL would.
"""

import mmap
import os
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from mtp_loader.store.source import ExpertSource
from mtp_protocol.expert_messages import (
    Bye,
    Fed,
    Filled,
    FillFailed,
    Hello,
    Hint,
    Limit,
    Need,
    NotWelcome,
    Recall,
    Released,
    Resident,
    ToEngine,
    Used,
    Welcome,
    to_engine,
    to_loader,
)
from mtp_protocol.geometry import PoolLayout
from support.pool_shapes import widened

Key = tuple[int, int]


@dataclass
class _Bank:
    free: deque[int]
    resident: OrderedDict[Key, int] = field(default_factory=OrderedDict)  # told to the engine, oldest use first
    recalled: dict[int, Key] = field(default_factory=dict)  # slot by slot, until it is released


class InlineLoader:
    """Serves one engine at `address`. Every attribute that a test reads is written by the loader's thread alone."""

    def __init__(
        self,
        source: ExpertSource,
        layout: PoolLayout,
        region_fd: int,
        directory: Path,
        context: "zmq.Context[Any]",
        *,
        epoch: int = 1,
        resident: "dict[Key, int] | None" = None,
    ) -> None:
        self.source, self.layout, self.epoch = source, layout, epoch
        self.address = f"ipc://{directory}/loader-{epoch}.sock"
        self.reads: list[Key] = []
        self.needs: list[Need] = []
        self.hints: list[Hint] = []
        self.fed: list[Fed] = []
        self.used: list[Used] = []
        self.released: list[Released] = []
        self.errors: list[str] = []
        self.drop_fills = 0
        self.mute = False  # answers no demand
        self.turns_away = False  # answers Hello with NotWelcome
        self.delay_s = 0.0
        self.fail: set[Key] = set()
        self.recall_all_after: int | None = None  # after that many needs, recall every slot that is not held
        self._memory = mmap.mmap(region_fd, layout.nbytes, mmap.MAP_SHARED)
        self._files = [os.open(f, os.O_RDONLY) for f in source.files]
        self._bank_of = {y.layer: y.bank for y in source.geometry.layers}
        self._banks = [_Bank(deque(range(b.slots))) for b in layout.banks]
        self._adopt(resident or {})
        self.limits = [b.slots for b in layout.banks]
        self._waiting: list[tuple[Need, list[int]]] = []
        self._engine: bytes | None = None
        self._epochs = b""
        self._begin(context)

    def _begin(self, context: "zmq.Context[Any]") -> None:
        self._socket = self._bound(context)
        self._orders: deque[Any] = deque()
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"inline-loader-{self.epoch}", daemon=True)
        self._thread.start()

    def _adopt(self, resident: dict[Key, int]) -> None:
        """What an earlier loader left in these slots."""
        for (layer, expert), slot in resident.items():
            bank = self._banks[self._bank_of[layer]]
            bank.free.remove(slot)
            bank.resident[layer, expert] = slot

    def _bound(self, context: "zmq.Context[Any]") -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.bind(self.address)
        return socket

    # -- for tests -------------------------------------------------------------------------------------------------

    def order(self, message: ToEngine) -> None:
        """Send this to the engine, from the loader's thread."""
        self._orders.append(message)
        os.write(self._stop_write, b"o")

    def resize(self, slots: int) -> None:
        """Use only that many slots of each bank from now on."""
        self._orders.append(("resize", slots))
        os.write(self._stop_write, b"o")

    def say(self, message: ToEngine) -> None:
        """Send these very words, whatever the slot table says."""
        self._orders.append(("say", message, self._epochs))
        os.write(self._stop_write, b"o")

    def prefetch(self, layer: int, experts: "tuple[int, ...]") -> None:
        """Fill these without being asked, where slots are free."""
        self._orders.append((layer, experts))
        os.write(self._stop_write, b"o")

    def resident(self) -> dict[Key, int]:
        return {k: s for b in self._banks for k, s in b.resident.items()}

    def kill(self) -> None:
        """End at once; nothing more is written and nothing more is said. Returns when it is gone."""
        os.write(self._stop_write, b"x")
        self._thread.join(10)
        assert not self._thread.is_alive()
        for fd in (self._stop_read, self._stop_write, *self._files):
            os.close(fd)
        self._memory.close()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._stop_read, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stop_read in ready:
                if os.read(self._stop_read, 1) == b"x":
                    self._socket.close(0)
                    return
                self._obey(self._orders.popleft())
            if self._socket in ready:
                identity, epochs, body = self._socket.recv_multipart()
                try:
                    self._take(identity, epochs, to_loader.decode(body))
                except Exception as error:  # noqa: BLE001 - the thread's boundary: the test reads `errors`
                    self.errors.append(repr(error))

    def _obey(self, order: Any) -> None:
        if not isinstance(order, tuple):
            if isinstance(order, Recall):
                self._recall(order.bank, [k for k, s in self._banks[order.bank].resident.items() if s in order.slots])
            else:
                self._send(order)
            return
        if order[0] == "say":
            assert self._engine is not None
            self._socket.send_multipart([self._engine, order[2], to_engine.encode(order[1])])
            return
        if order[0] == "resize":
            self._resize(order[1])
            return
        layer, experts = order
        bank = self._banks[self._bank_of[layer]]
        filled = []
        for expert in experts:
            if (layer, expert) not in bank.resident and bank.free:
                filled.append(Resident(layer, expert, self._fill(layer, expert)))
        self._send(Filled(None, tuple(filled)))

    def _resize(self, slots: int) -> None:
        self.limits = [min(slots, b.slots) for b in self.layout.banks]
        self._send(Limit(tuple(self.limits)))
        for number, (bank, limit) in enumerate(zip(self._banks, self.limits, strict=True)):
            taken = {*bank.resident.values(), *bank.recalled}
            bank.free = deque(s for s in range(limit) if s not in taken)
            self._recall(number, [k for k, s in bank.resident.items() if s >= limit])
        self._serve()

    def _take(self, identity: bytes, epochs: bytes, message: Any) -> None:
        match message:
            case Hello() if self.turns_away:
                self._engine, self._epochs = identity, epochs
                self._send(NotWelcome("it serves another model"))
            case Hello():
                self._engine, self._epochs = identity, epochs
                told = [Resident(y, e, s) for (y, e), s in self.resident().items()]
                self._send(Welcome(tuple(told), self.layout.generation))
            case Need():
                self._take_need(message)
            case Released(bank_number, slots):
                self.released.append(message)
                bank = self._banks[bank_number]
                for slot in slots:
                    del bank.recalled[slot]  # KeyError: released without being asked
                    if slot < self.limits[bank_number]:
                        bank.free.append(slot)
            case Fed():
                self.fed.append(message)
            case Hint():
                self.hints.append(message)
            case Used():
                self.used.append(message)
            case Bye():
                self._engine = None
        self._serve()

    def _take_need(self, need: Need) -> None:
        self.needs.append(need)
        self._waiting.clear()  # a Need takes the place of the one before
        limit = self.limits[self._bank_of[need.layer]]
        if len(need.experts) + sum(s < limit for s in need.held_slots) > limit:
            reason = f"a wave of {len(need.experts)} does not fit {limit} slots"
            self._send(FillFailed(need.ticket, need.layer, need.experts[0], reason))
            return
        bank = self._banks[self._bank_of[need.layer]]
        back = [e for e in need.experts if (need.layer, e) in bank.resident]
        if back:  # the engine never heard that these were filled
            told = [Resident(need.layer, e, bank.resident[need.layer, e]) for e in back]
            self._send(Filled(need.ticket, tuple(told), len(need.experts) - len(back)))
        if len(back) < len(need.experts):
            self._waiting.append((need, [e for e in need.experts if e not in back]))

    def _serve(self) -> None:
        """Fill what can be filled; ask slots back for the rest."""
        for need, left in list(self._waiting):
            number = self._bank_of[need.layer]
            bank = self._banks[number]
            while left and bank.free:
                expert = left.pop(0)
                if (need.layer, expert) in bank.resident:  # prefetched while it waited for a slot
                    told = Resident(need.layer, expert, bank.resident[need.layer, expert])
                    self._send(Filled(need.ticket, (told,), len(left)))
                    continue
                if (need.layer, expert) in self.fail:
                    self._waiting.remove((need, left))
                    self._send(FillFailed(need.ticket, need.layer, expert, "input/output error at offset 4096"))
                    return
                told = Resident(need.layer, expert, self._fill(need.layer, expert))
                if self.drop_fills:
                    self.drop_fills -= 1
                else:
                    self._send(Filled(need.ticket, (told,), len(left)))
            if not left:
                self._waiting.remove((need, left))
                if self.recall_all_after is not None and len(self.needs) >= self.recall_all_after:
                    self._recall(number, list(bank.resident))
                continue
            supply = sum(1 for s in bank.recalled if s not in need.held_slots and s < self.limits[number])
            wanted = len(left) - supply
            victims = [
                k
                for k, s in bank.resident.items()
                if s not in need.held_slots and not (k[0] == need.layer and k[1] in need.experts)
            ]
            if wanted > 0:
                self._recall(number, victims[:wanted])
                if len(victims) < wanted:
                    self.errors.append(f"{need}: {wanted} slots wanted, {len(victims)} can be recalled")

    def _recall(self, number: int, keys: list[Key]) -> None:
        bank = self._banks[number]
        slots = []
        for key in keys:
            slot = bank.resident.pop(key)
            bank.recalled[slot] = key
            slots.append(slot)
        if slots:
            self._send(Recall(number, tuple(slots)))

    def _fill(self, layer: int, expert: int) -> int:
        if self.delay_s:
            time.sleep(self.delay_s)  # a slow disk
        number = self._bank_of[layer]
        bank = self._banks[number]
        slot = bank.free.popleft()
        self.reads.append((layer, expert))
        planes = self.source.geometry.banks[number].planes
        for extent in self.source.extents(layer, expert):
            data = os.pread(self._files[extent.file], extent.nbytes, extent.offset)
            for index in extent.planes:
                row, data = data[: planes[index].source_bytes], data[planes[index].source_bytes :]
                start = self.layout.banks[number].plane_offsets[index] + slot * planes[index].row_bytes
                self._memory[start : start + planes[index].row_bytes] = widened(row, planes[index])
        bank.resident[layer, expert] = slot
        return slot

    def _send(self, message: ToEngine) -> None:
        if self._engine is not None and not (self.mute and isinstance(message, Filled)):
            self._socket.send_multipart([self._engine, self._epochs, to_engine.encode(message)])
