"""The sparse block, without a Python-side autograd graph for each expert.

Tokens are sorted by expert, each expert multiplies its own rows in place (no padding), and
both permutations have hand-written gradients: index_add on a CPU is several times slower
than the gather by the inverse permutation used here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .shape import Shape


class _Dispatch(torch.autograd.Function):
    """[tokens, width] -> [tokens * k, width], rows in expert order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor, k: int) -> Tensor:
        ctx.inverse, ctx.k = inverse, k
        return x.index_select(0, torch.div(order, k, rounding_mode="floor"))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows = grad.index_select(0, ctx.inverse)
        return rows.view(-1, ctx.k, grad.shape[1]).sum(1), None, None, None


class _Combine(torch.autograd.Function):
    """[tokens * k, width] in expert order -> [tokens, width], the k rows of a token summed."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, order: Tensor, inverse: Tensor, k: int) -> Tensor:
        ctx.order, ctx.k = order, k
        return y.index_select(0, inverse).view(-1, k, y.shape[1]).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows = torch.div(ctx.order, ctx.k, rounding_mode="floor")
        return grad.index_select(0, rows), None, None, None


class _Grouped(torch.autograd.Function):
    """Rows ``bounds[e]:bounds[e + 1]`` of x times ``weight[e]`` transposed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bounds: list[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bounds = bounds
        y = x.new_empty(x.shape[0], weight.shape[1])
        for e in range(weight.shape[0]):
            s, t = bounds[e], bounds[e + 1]
            if t > s:
                torch.mm(x[s:t], weight[e].t(), out=y[s:t])
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)
        for e in range(weight.shape[0]):
            s, t = ctx.bounds[e], ctx.bounds[e + 1]
            if t > s:
                torch.mm(grad[s:t], weight[e], out=dx[s:t])
                torch.mm(grad[s:t].t(), x[s:t], out=dw[e])
        return dx, dw, None


class Router(nn.Module):
    """``gate.weight`` [experts, hidden]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape.experts, shape.hidden) * 0.02)


class Experts(nn.Module):
    """All experts of a layer, stacked as transformers keeps them in memory."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        e, h, i = shape.experts, shape.hidden, shape.inner
        self.gate_up_proj = nn.Parameter(torch.randn(e, 2 * i, h) * 0.02)
        self.down_proj = nn.Parameter(torch.randn(e, h, i) * 0.02)


class MLP(nn.Module):
    """SwiGLU of the shared expert."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SparseBlock(nn.Module):
    """Top-k of the experts plus a gated shared expert. [..., hidden] -> [..., hidden].

    After a forward ``balance`` holds the load-balancing loss (1.0 when even), ``probs``
    [tokens, experts] and ``picks`` [tokens, k] the routing, for whoever measures it.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.k = shape.top_k
        self.gate = Router(shape)
        self.experts = Experts(shape)
        self.shared_expert = MLP(shape.hidden, shape.inner)
        self.shared_expert_gate = nn.Linear(shape.hidden, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        probs = F.linear(flat, self.gate.weight).softmax(-1)
        top, picks = probs.topk(self.k, dim=-1)
        weights = top / top.sum(-1, keepdim=True)
        order = picks.reshape(-1).argsort(stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order))
        count = torch.bincount(picks.reshape(-1), minlength=probs.shape[1])
        self.balance = (count / count.sum() * probs.mean(0)).sum() * probs.shape[1]
        self.probs, self.picks = probs.detach(), picks
        bounds = [0, *count.cumsum(0).tolist()]
        rows = _Dispatch.apply(flat, order, inverse, self.k)
        gate, up = _Grouped.apply(rows, self.experts.gate_up_proj, bounds).chunk(2, dim=-1)
        # The routing weight scales the narrow inner row: the same sum, a quarter of the work.
        inner = F.silu(gate) * up * weights.reshape(-1, 1)[order]
        out = _Grouped.apply(inner, self.experts.down_proj, bounds)
        out = _Combine.apply(out, order, inverse, self.k)
        shared = self.shared_expert_gate(flat).sigmoid() * self.shared_expert(flat)
        return (out + shared).view_as(x)
