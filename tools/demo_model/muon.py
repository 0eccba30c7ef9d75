"""Muon (orthogonalised momentum) for matrices, with the iteration done on the Gram matrix."""

from __future__ import annotations

import torch
from torch import Tensor

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


class Muon(torch.optim.Optimizer):
    """Parameters [rows, columns] or [experts, rows, columns]; a step has unit spectral size.

    ``parts``: a parameter that stacks several matrices along its rows (gate and up) is
    orthogonalised in that many pieces.
    """

    def __init__(self, groups: list[dict], lr: float, momentum: float, decay: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "decay": decay, "parts": 1})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                buffer = state.setdefault("buffer", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buffer, group["momentum"])
                rows = p.shape[-2] // group["parts"]
                pieces = update.view(-1, rows, p.shape[-1])
                pieces = orthogonalise(pieces).reshape(p.shape)
                scale = max(1.0, rows / p.shape[-1]) ** 0.5
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(pieces, alpha=-group["lr"] * scale)
