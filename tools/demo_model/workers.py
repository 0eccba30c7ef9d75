"""One update computed by several processes of one thread each, on shared parameters.

Each process takes pieces of the batch from a common counter, so a process whose core is busy
with something else simply does fewer; with threads inside one process every small operation
would wait for the slower core. Then all share out the parameters' updates in the same way.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor

from .loss import losses
from .model import DemoModel
from .muon import Unit, units

WAIT_S = 900.0  # longer than any evaluation: only a dead process lets a barrier wait so long


def keep_memory() -> None:
    """Lets glibc reuse freed blocks: by default each large tensor is mapped and zeroed anew."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no block is mapped on its own
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: nothing is given back


@dataclass
class Order:
    """What the leading process asks of a step."""

    chain: bool = False
    muon_lr: float = 0.0
    adam_lr: float = 0.0
    decay: float = 0.0
    head_weight: float = 0.3
    balance_weight: float = 0.01
    step: int = 1
    stop: bool = False


@dataclass
class Shared:
    """All that the processes have in common. Born in ``Team``; each field says who writes."""

    model: DemoModel  # whoever updates a unit
    units: list[Unit]
    blocks: Tensor  # [pieces, rows, time]; the leader, before a step
    order: Tensor  # the fields of Order as float64; the leader
    figures: Tensor  # [workers, 4] sums of the losses; each worker its row
    ticket: Any  # multiprocessing.Value under its lock
    barrier: Any

    def take(self, count: int) -> int | None:
        with self.ticket.get_lock():
            mine = self.ticket.value
            self.ticket.value += 1
        return mine if mine < count else None


def _compute(shared: Shared, rank: int, order: Order) -> None:
    pieces = shared.blocks.shape[0]
    while (i := shared.take(pieces)) is not None:
        found = losses(
            shared.model,
            shared.blocks[i],
            order.head_weight,
            order.balance_weight,
            order.chain,
        )
        (found.total / pieces).backward()
        shared.figures[rank] += torch.tensor([found.text, found.head, found.balance, found.agree])


def _update(shared: Shared, order: Order) -> None:
    while (i := shared.take(len(shared.units))) is not None:
        unit = shared.units[i]
        unit.update(order.muon_lr if unit.parts else order.adam_lr, order.decay, order.step)


def _phases(shared: Shared, rank: int, order: Order) -> None:
    """A step's two phases; the leader resets the counter where all others wait."""
    _compute(shared, rank, order)
    shared.barrier.wait(WAIT_S)
    if rank == 0:
        shared.ticket.value = 0
    shared.barrier.wait(WAIT_S)
    _update(shared, order)
    shared.barrier.wait(WAIT_S)


def _adopt_gradients(shared: Shared, rank: int) -> None:
    named = dict(shared.model.named_parameters())
    for unit in shared.units:
        named[unit.name].grad = unit.gradients[rank]


def _follow(shared: Shared, rank: int) -> None:
    keep_memory()
    torch.set_num_threads(1)
    _adopt_gradients(shared, rank)
    names = list(vars(Order()))
    while True:
        shared.barrier.wait(WAIT_S)
        values = dict(zip(names, shared.order.tolist(), strict=True))
        if values["stop"]:
            return
        order = Order(**{**values, "chain": bool(values["chain"]), "step": int(values["step"])})
        _phases(shared, rank, order)


@dataclass
class Team:
    """The leading process's side. ``workers`` counts it in."""

    model: DemoModel
    workers: int
    pieces: int
    rows: int
    time: int
    processes: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        context = mp.get_context("spawn")
        for p in self.model.parameters():
            p.requires_grad_(True)
        self.shared = Shared(
            self.model,
            units(self.model, self.workers),
            torch.zeros(self.pieces, self.rows, self.time, dtype=torch.int64).share_memory_(),
            torch.zeros(len(vars(Order())), dtype=torch.float64).share_memory_(),
            torch.zeros(self.workers, 4).share_memory_(),
            context.Value("q", 0),
            context.Barrier(self.workers),
        )
        _adopt_gradients(self.shared, 0)
        for rank in range(1, self.workers):
            process = context.Process(target=_follow, args=(self.shared, rank), daemon=True)
            process.start()
            self.processes.append(process)

    def step(self, block: Tensor, order: Order) -> list[float]:
        """One update on ``block`` [pieces * rows, time]: mean text, head, balance, agreement."""
        shared = self.shared
        shared.blocks.copy_(block.view_as(shared.blocks))
        shared.order.copy_(torch.tensor([float(v) for v in vars(order).values()]))
        shared.figures.zero_()
        shared.ticket.value = 0
        shared.barrier.wait(WAIT_S)
        _phases(shared, 0, order)
        return (shared.figures.sum(0) / self.pieces).tolist()

    def close(self) -> None:
        """Lets the other processes end."""
        self.shared.order[-1] = 1.0
        if self.processes:
            self.shared.barrier.wait(WAIT_S)
        for process in self.processes:
            process.join(WAIT_S)
