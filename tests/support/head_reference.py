"""The Qwen MTP head in numpy, float64, written from its definition: the judge of the one that decodes.

    x = fc [norm_e(embedding of token i+1); norm_h(hidden row i)]
    h = x + attention(input_norm(x));  y = h + experts(post_norm(h));  out = norm(y)

Attention: q_proj gives each head its query and, after it, the gate of its output; q and k are normed per head; the
first `partial_rotary_factor` of a head's dimensions turn, in two halves; the output is gated by a sigmoid.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class ReferenceHead:
    """One head with its own keys and values, row by row. `weights` by plain names, stacked experts, norms x * w."""

    def __init__(self, weights: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
        self._w = {k: np.asarray(v, dtype=np.float64) for k, v in weights.items()}
        self._sizes = sizes
        self._keys: list[Array] = []
        self._values: list[Array] = []

    def feed(self, embedding: Array, hidden: Array) -> Array:
        """`out` [H] of one row: the embedding [H] of the next token and a hidden row [H]."""
        joined = np.concatenate(
            [self._norm("pre_fc_norm_embedding", embedding), self._norm("pre_fc_norm_hidden", hidden)]
        )
        x = self._w["fc.weight"] @ joined
        x = x + self._attention(self._norm("layers.0.input_layernorm", x))
        x = x + self._experts(self._norm("layers.0.post_attention_layernorm", x))
        return self._norm("norm", x)

    def drop(self, rows: int) -> None:
        """Forget the last `rows` rows."""
        del self._keys[len(self._keys) - rows :], self._values[len(self._values) - rows :]

    def _norm(self, name: str, x: Array) -> Array:
        return (
            x
            / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self._sizes["rms_norm_eps"])
            * self._w[f"{name}.weight"]
        )

    def _project(self, name: str, x: Array) -> Array:
        return self._w[f"layers.0.{name}.weight"] @ x

    def _attention(self, x: Array) -> Array:
        size, heads = self._sizes["head_dim"], self._sizes["num_attention_heads"]
        kv_heads, position = self._sizes["num_key_value_heads"], len(self._keys)
        both = self._project("self_attn.q_proj", x).reshape(heads, 2 * size)
        query, gate = both[:, :size], both[:, size:]
        query = self._turn(self._norm("layers.0.self_attn.q_norm", query), position)
        key = self._norm("layers.0.self_attn.k_norm", self._project("self_attn.k_proj", x).reshape(kv_heads, size))
        self._keys.append(self._turn(key, position))
        self._values.append(self._project("self_attn.v_proj", x).reshape(kv_heads, size))
        keys, values = np.stack(self._keys), np.stack(self._values)
        out = np.empty((heads, size))
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = keys[:, group] @ query[head] / np.sqrt(size)
            weights = np.exp(scores - scores.max())
            out[head] = weights / weights.sum() @ values[:, group]
        return self._project("self_attn.o_proj", (out / (1 + np.exp(-gate))).reshape(-1))

    def _turn(self, x: Array, position: int) -> Array:
        """Rotary embedding of [heads, size] at a position."""
        rope = self._sizes.get("rope_parameters", self._sizes)
        dims = int(x.shape[-1] * rope["partial_rotary_factor"])
        half = dims // 2
        angle = position * rope["rope_theta"] ** (-np.arange(half) / half)
        a, b = x[:, :half], x[:, half:dims]
        turned = np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)
        return np.concatenate([turned, x[:, dims:]], axis=-1)

    def _experts(self, x: Array) -> Array:
        scores = self._project("mlp.gate", x)
        share = np.exp(scores - scores.max())
        share /= share.sum()
        chosen = np.argsort(-share)[: self._sizes["num_experts_per_tok"]]
        weights = share[chosen] / share[chosen].sum() if self._sizes["norm_topk_prob"] else share[chosen]
        stacked = [self._w[f"layers.0.mlp.switch_mlp.{p}_proj.weight"] for p in ("gate", "up", "down")]
        total = sum(w * _glu(x, *(s[e] for s in stacked)) for w, e in zip(weights, chosen, strict=True))
        shared = _glu(x, *(self._w[f"layers.0.mlp.shared_expert.{p}_proj.weight"] for p in ("gate", "up", "down")))
        return total + shared / (1 + np.exp(-self._project("mlp.shared_expert_gate", x)))


def _glu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    g = gate @ x
    result: Array = down @ (g / (1 + np.exp(-g)) * (up @ x))
    return result
