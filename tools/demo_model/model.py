"""Qwen3-Next with its MTP head, in plain torch, with transformers' parameter names."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .delta import GatedDeltaNet
from .moe import SparseBlock
from .shape import Shape


class Norm(nn.Module):
    """RMSNorm with a zero-centred weight: x / rms(x) * (1 + weight)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, 1 + self.weight, self.eps)


def _rotate(x: Tensor, shape: Shape) -> Tensor:
    """Rotary embedding of the first part of each head. x [batch, heads, time, dim]."""
    dim = int(shape.head_dim * shape.rotary_factor)
    inv = shape.rope_theta ** -(torch.arange(0, dim, 2).float() / dim)
    angle = torch.arange(x.shape[2]).float()[:, None] * inv
    cos, sin = angle.cos(), angle.sin()
    a, b, rest = x.split([dim // 2, dim // 2, x.shape[-1] - dim], dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


class Attention(nn.Module):
    """Causal attention with a sigmoid gate on its output. [batch, time, hidden] -> same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        h, d = shape.hidden, shape.head_dim
        self.q_proj = nn.Linear(h, shape.heads * d * 2, bias=False)
        self.k_proj = nn.Linear(h, shape.kv_heads * d, bias=False)
        self.v_proj = nn.Linear(h, shape.kv_heads * d, bias=False)
        self.o_proj = nn.Linear(shape.heads * d, h, bias=False)
        self.q_norm, self.k_norm = Norm(d, shape.eps), Norm(d, shape.eps)

    def forward(self, x: Tensor) -> Tensor:
        s, (batch, time) = self.shape, x.shape[:2]
        q, gate = self.q_proj(x).view(batch, time, s.heads, -1).chunk(2, dim=-1)
        k = self.k_proj(x).view(batch, time, s.kv_heads, -1)
        v = self.v_proj(x).view(batch, time, s.kv_heads, -1).transpose(1, 2)
        q = _rotate(self.q_norm(q).transpose(1, 2), s)
        k = _rotate(self.k_norm(k).transpose(1, 2), s)
        per = s.heads // s.kv_heads
        k, v = k.repeat_interleave(per, dim=1), v.repeat_interleave(per, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.o_proj((y * gate.sigmoid()).reshape(batch, time, -1))


class Layer(nn.Module):
    """A decoder layer: token mixer, then the sparse block, both residual."""

    def __init__(self, shape: Shape, attention: bool) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        if attention:
            self.self_attn = Attention(shape)
        else:
            self.linear_attn = GatedDeltaNet(shape)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = SparseBlock(shape)
        self.attention = attention
        self.dropout = 0.0

    def forward(self, x: Tensor) -> Tensor:
        mixer = self.self_attn if self.attention else self.linear_attn
        x = x + self._drop(mixer(self.input_layernorm(x)))
        return x + self._drop(self.mlp(self.post_attention_layernorm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Trunk(nn.Module):
    """Token ids [batch, time] -> hidden rows [batch, time, hidden], after the final norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, shape.is_attention(i)) for i in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Head(nn.Module):
    """The MTP head: the hidden row of position i and the token at i + 1 give row i + 1.

    Its output, after ``norm``, goes to the model's own output layer and, chained, back in.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.pre_fc_norm_embedding = Norm(shape.hidden, shape.eps)
        self.pre_fc_norm_hidden = Norm(shape.hidden, shape.eps)
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.layers = nn.ModuleList([Layer(shape, attention=True)])
        self.norm = Norm(shape.hidden, shape.eps)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        e, h = self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)
        return self.norm(self.layers[0](self.fc(torch.cat((e, h), dim=-1))))


class DemoModel(nn.Module):
    """Trunk, tied output layer and MTP head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        self.mtp = Head(shape)
        for name, p in self.named_parameters():
            if p.dim() == 2 or name.endswith("experts.gate_up_proj"):
                nn.init.normal_(p, std=0.02 if "embed" in name else p.shape[-1] ** -0.5 * 0.5)
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                nn.init.normal_(p, std=0.005)  # near-zero residual branches start stable
            if name.endswith("experts.down_proj"):
                nn.init.normal_(p, std=0.01)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab], with the tied embedding."""
        return F.linear(hidden, self.model.embed_tokens.weight)

    def blocks(self) -> list[SparseBlock]:
        """Every sparse block in order, the head's last."""
        return [layer.mlp for layer in [*self.model.layers, *self.mtp.layers]]
