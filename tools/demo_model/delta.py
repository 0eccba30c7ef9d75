"""The gated delta rule in chunks, as matrix products (Qwen3-Next's linear attention)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .shape import Shape

CHUNK = 32


class _UnitLowerInverse(torch.autograd.Function):
    """Inverse of unit lower triangular matrices [..., n, n] (the upper part is not read)."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        eye = torch.eye(lower.shape[-1]).expand_as(lower)
        inverse = torch.linalg.solve_triangular(lower, eye, upper=False, unitriangular=True)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        t = inverse.transpose(-1, -2)
        return -(t @ grad @ t).tril(-1)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def gated_delta(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """[batch, time, heads, dim] each, decay (log) and beta [batch, time, heads] -> like v.

    The state S of a head obeys S_t = S_(t-1) (I - beta k k^T) exp(decay) + beta v k^T. Inside
    a chunk the updates fold into one triangular system; between chunks S is carried on.
    """
    batch, time, heads, dim = v.shape
    pad = -time % CHUNK
    q, k = _unit(q) * q.shape[-1] ** -0.5, _unit(k)

    def cut(x: Tensor) -> Tensor:
        if pad:
            x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, pad))
        x = x.transpose(1, 2).reshape(batch * heads, -1, CHUNK, *x.shape[3:])
        return x.contiguous()

    q, k, v, decay, beta = (cut(x) for x in (q, k, v, decay, beta))
    total = decay.cumsum(-1)
    upper = torch.ones(CHUNK, CHUNK, dtype=torch.bool).triu(1)
    pair = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(upper, float("-inf")).exp()
    grown = total.exp().unsqueeze(-1)
    k_t = k.transpose(-1, -2)
    k_beta = k * beta.unsqueeze(-1)
    solve = _UnitLowerInverse.apply((k_beta @ k_t) * pair)
    new_values = solve @ (v * beta.unsqueeze(-1))
    old_keys = solve @ (k_beta * grown)
    inside = (q @ k_t) * pair
    q = q * grown
    k_t = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2)
    keep = total[..., -1].exp()[..., None, None]
    state = v.new_zeros(batch * heads, k.shape[-1], dim)
    out = []
    for i in range(v.shape[1]):
        fresh = torch.baddbmm(new_values[:, i], old_keys[:, i], state, alpha=-1)
        out.append(torch.baddbmm(inside[:, i] @ fresh, q[:, i], state))
        state = torch.baddbmm(state * keep[:, i], k_t[:, i], fresh)
    y = torch.stack(out, 1).view(batch, heads, -1, dim)[:, :, :time]
    return y.transpose(1, 2)


class GatedNorm(nn.Module):
    """RMSNorm times silu of a gate; the one norm of the family whose weight is not shifted."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps) * F.silu(gate)


class GatedDeltaNet(nn.Module):
    """[batch, time, hidden] -> the same. Parameter names and inner order are transformers'."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = 2 * shape.key_width + shape.value_width
        self.conv1d = nn.Conv1d(width, width, shape.conv_kernel, groups=width, bias=False)
        self.in_proj_qkvz = nn.Linear(shape.hidden, width + shape.value_width, bias=False)
        self.in_proj_ba = nn.Linear(shape.hidden, 2 * shape.value_heads, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(shape.value_heads))
        self.A_log = nn.Parameter(torch.empty(shape.value_heads).uniform_(0.01, 16).log())
        self.norm = GatedNorm(shape.delta_dim, shape.eps)
        self.out_proj = nn.Linear(shape.value_width, shape.hidden, bias=False)

    def _conv(self, x: Tensor) -> Tensor:
        """Causal depthwise convolution over time as shifted products, then silu."""
        taps = self.conv1d.weight[:, 0].t()
        n, time = taps.shape[0], x.shape[1]
        x = F.pad(x, (0, 0, n - 1, 0))
        y = x[:, :time] * taps[0]
        for i in range(1, n):
            y = torch.addcmul(y, x[:, i : i + time], taps[i])
        return F.silu(y)

    def forward(self, x: Tensor) -> Tensor:
        s, (batch, time) = self.shape, x.shape[:2]
        per = s.value_heads // s.key_heads
        mixed = self.in_proj_qkvz(x).view(batch, time, s.key_heads, -1)
        d, wide = s.delta_dim, per * s.delta_dim
        q, k, v, z = (t.flatten(2) for t in mixed.split([d, d, wide, wide], dim=-1))
        b, a = self.in_proj_ba(x).view(batch, time, s.key_heads, -1).chunk(2, dim=-1)
        b, a = b.flatten(2), a.flatten(2)
        mixed = self._conv(torch.cat((q, k, v), dim=-1))
        q, k, v = mixed.split([s.key_width, s.key_width, s.value_width], dim=-1)
        q, k = (t.view(batch, time, s.key_heads, d).repeat_interleave(per, dim=2) for t in (q, k))
        decay = -self.A_log.exp() * F.softplus(a + self.dt_bias)
        y = gated_delta(q, k, v.view(batch, time, -1, d), decay, b.sigmoid())
        y = self.norm(y, z.view(batch, time, -1, d))
        return self.out_proj(y.reshape(batch, time, -1))
