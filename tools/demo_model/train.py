"""The training loop: wall-clock schedule, checkpoints, progress."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .data import batches
from .evaluate import quick
from .loss import EXTRA
from .model import DemoModel
from .workers import Order, Team


@dataclass(frozen=True)
class Recipe:
    """Everything that shapes the training besides the model's sizes and the time it gets."""

    pieces: int = 4  # of a batch, shared out among the processes
    rows: int = 2  # of a piece
    length: int = 256
    muon_lr: float = 0.02
    adam_lr: float = 0.003
    decay: float = 0.05
    head_weight: float = 0.3
    balance_weight: float = 0.01
    warmup: float = 0.02  # shares of the time: the rate rises, stays, falls to zero
    stay: float = 0.3
    chain_from: float = 0.4  # share of the time after which the head also drafts twice ...
    chain_every: int = 3  # ... in every third step
    seed: int = 1


def rate(recipe: Recipe, share: float) -> float:
    """The learning rate's factor after ``share`` (0 to 1) of the time."""
    if share < recipe.warmup:
        return max(share / recipe.warmup, 0.02)
    return min(1.0, max(0.0, (1 - share) / (1 - recipe.stay)))


@dataclass
class Progress:
    """Where a run stands; saved with each checkpoint."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float = float("inf")


class Run:
    """One training run. Owns the model, the team that trains it and the checkpoint files."""

    def __init__(self, model: DemoModel, recipe: Recipe, out: Path, minutes: float, workers: int) -> None:
        self.model, self.recipe, self.out = model, recipe, out
        self.budget_s = minutes * 60
        self.team = Team(model, workers, recipe.pieces, recipe.rows, recipe.length + EXTRA)
        self.progress = Progress()

    def save(self, name: str) -> None:
        """Writes OUT/NAME whole or not at all."""
        state = {
            "model": self.model.state_dict(),
            "moments": {u.name: u.moments for u in self.team.shared.units},
            "progress": vars(self.progress),
        }
        part = self.out / (name + ".part")
        torch.save(state, part)
        os.replace(part, self.out / name)

    def load(self, path: Path) -> None:
        """Takes up the run saved in ``path``; its elapsed time counts."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for unit in self.team.shared.units:
            for moment, saved in zip(unit.moments, state["moments"][unit.name], strict=True):
                moment.copy_(saved)
        self.progress = Progress(**state["progress"])

    def step(self, block: Tensor) -> str:
        """One update; returns the figures of the progress line."""
        p, recipe = self.progress, self.recipe
        share = p.seconds / self.budget_s
        factor = rate(recipe, share)
        order = Order(
            chain=share >= recipe.chain_from and p.step % recipe.chain_every == 0,
            muon_lr=recipe.muon_lr * factor,
            adam_lr=recipe.adam_lr * factor,
            decay=recipe.decay,
            head_weight=recipe.head_weight,
            balance_weight=recipe.balance_weight,
            step=p.step + 1,
        )
        text, head, balance, agree = self.team.step(block, order)
        p.step += 1
        p.tokens += block.shape[0] * recipe.length
        return f"lr x{factor:.2f} text {text:.3f} head {head:.3f} agree {agree:.3f} balance {balance:.3f}"

    def train(self, ids: Tensor, held: Tensor, characters: int, checked: Callable[[str], None]) -> None:
        """Trains until the time is up; checkpoints and evaluates every few minutes.

        ``checked`` is called after each evaluation with one line of figures.
        """
        recipe, p = self.recipe, self.progress
        source = batches(ids, recipe.pieces * recipe.rows, recipe.length, EXTRA, recipe.seed + p.step)
        last, next_check = time.monotonic(), p.seconds + 270
        while p.seconds < self.budget_s:
            figures = self.step(next(source))
            now = time.monotonic()
            p.seconds, last = p.seconds + now - last, now
            if p.step % 10 == 0:
                eta = (self.budget_s - p.seconds) / 60
                speed = p.tokens / p.seconds
                print(f"step {p.step} {figures} {speed:.0f} tok/s eta {eta:.0f} min", flush=True)
            if p.seconds >= next_check or p.seconds >= self.budget_s:
                next_check = p.seconds + 270
                checked(self.check(held, characters))
        self.save("last.pt")

    def check(self, held: Tensor, characters: int) -> str:
        """Evaluates, saves last.pt, and best.pt when it is the best so far."""
        p = self.progress
        found = quick(self.model, held, characters)
        self.save("last.pt")
        if found["bits_a_character"] < p.best:
            p.best = found["bits_a_character"]
            self.save("best.pt")
        return (
            f"{p.seconds / 60:.1f} min {p.tokens} tokens "
            f"{found['bits_a_character']:.3f} bits/char {found['agree']:.3f} agreement"
        )
