"""The updates: Muon (orthogonalised momentum) for matrices, Adam for the rest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .model import DemoModel

# Quintic coefficients of the published optimiser (Jordan et al., 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalise(x: Tensor, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrices to x [..., rows, columns], roughly.

    The iteration X <- (a + b G + c G^2) X, G = X X^T, is run on G alone (every factor is a
    polynomial of G, so all commute): for 64 x 256 experts that is half the multiplications.
    """
    tall = x.shape[-2] > x.shape[-1]
    x = x.transpose(-1, -2) if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    gram = x @ x.transpose(-1, -2)
    eye = torch.eye(gram.shape[-1])
    product = None
    for step in range(steps):
        factor = _A * eye + _B * gram + _C * (gram @ gram)
        product = factor if product is None else factor @ product
        if step + 1 < steps:
            gram = factor @ gram @ factor
    x = product @ x
    return x.transpose(-1, -2) if tall else x


@dataclass
class Unit:
    """One parameter with what its update needs; every tensor lives in shared memory.

    ``parts``: a parameter that stacks several matrices along its rows (gate and up) is
    orthogonalised in that many pieces. 0 means Adam. ``moments``: one for Muon, two for Adam.
    """

    name: str
    parameter: Tensor
    gradients: list[Tensor]  # one a worker
    moments: list[Tensor]
    parts: int

    @torch.no_grad()
    def update(self, lr: float, decay: float, step: int) -> None:
        """Adds the workers' gradients up, moves the parameter, clears the gradients.

        lr: the rate of this unit's kind; decay: per unit of lr, on matrices only.
        """
        grad = torch.stack(self.gradients).sum(0)
        for g in self.gradients:
            g.zero_()
        if self.parts:
            self._muon(grad, lr, decay)
        else:
            self._adam(grad, lr, step)

    def _muon(self, grad: Tensor, lr: float, decay: float) -> None:
        p, (buffer,) = self.parameter, self.moments
        buffer.lerp_(grad, 0.05)
        grad.lerp_(buffer, 0.95)  # Nesterov's look-ahead
        rows = p.shape[-2] // self.parts
        pieces = orthogonalise(grad.view(-1, rows, p.shape[-1])).reshape(p.shape)
        p.mul_(1 - lr * decay)
        p.add_(pieces, alpha=-lr * max(1.0, rows / p.shape[-1]) ** 0.5)

    def _adam(self, grad: Tensor, lr: float, step: int) -> None:
        first, second = self.moments
        first.lerp_(grad, 0.1)
        second.lerp_(grad.square(), 0.05)
        mean, square = first / (1 - 0.9**step), second / (1 - 0.95**step)
        self.parameter.sub_(lr * mean / (square.sqrt() + 1e-8))


def units(model: DemoModel, workers: int) -> list[Unit]:
    """Every parameter of ``model``, moved to shared memory, the dearest updates first."""
    made = []
    for name, p in model.named_parameters():
        p.data.share_memory_()
        small = p.dim() < 2 or any(
            s in name for s in ("embed_tokens", "conv1d", ".gate.weight", "expert_gate", "proj_ba")
        )
        parts = 0 if small else 2 if name.endswith("gate_up_proj") else 1
        zeros = [torch.zeros_like(p).share_memory_() for _ in range(workers + (2 if small else 1))]
        made.append(Unit(name, p.data, zeros[:workers], zeros[workers:], parts))
    return sorted(made, key=lambda u: (u.parts == 0, -u.parameter.numel()))
