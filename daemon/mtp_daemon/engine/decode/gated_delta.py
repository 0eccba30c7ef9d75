"""Gated-delta layers that keep every position's state during a verify, so that a reject recomputes nothing.

`ArraysCache` has no trim: trimming only the attention caches after a reject leaves the recurrence ahead of them. While
a cache records, the layer's projections and its convolution run as one batch over the S positions and only the
recurrence is stepped position by position, which is what mlx-lm's own loop does on the CPU and what its kernel does
inside: the same operations in the same order, so the same bits. The state stays float32 throughout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import silu
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import ArraysCache
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk
from mlx_lm.models.qwen3_5 import GatedDeltaNet
from mlx_lm.models.qwen3_next import Qwen3NextGatedDeltaNet

Projected = tuple[mx.array, mx.array, mx.array, mx.array]


@dataclass(frozen=True)
class Trail:
    """What one recorded forward of S positions left behind.

    `conv_input` [B, kernel - 1 + S, C]: the window after position t is rows t + 1 to t + kernel - 1.
    `states`: S arrays [B, heads, Dv, Dk], float32, the state after each position.
    """

    conv_input: mx.array
    states: tuple[mx.array, ...]

    def at(self, kept: int, row: int) -> list[mx.array | None]:
        """Cache entries after the first `kept` positions (1 to S) of batch row `row`, batch size 1."""
        width = self.conv_input.shape[1] - len(self.states)
        window = mx.contiguous(self.conv_input[row : row + 1, kept : kept + width])
        return [window, self.states[kept - 1][row : row + 1]]


class DeltaCache(ArraysCache):  # type: ignore[misc]
    """mlx-lm's cache of a gated-delta layer (convolution window, state), which records a trail when asked to."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.recording = False
        self.trail: Trail | None = None


def recording_deltas(model: Module) -> int:
    """Lets every gated-delta layer of `model` record; returns how many there are. Idempotent.

    A module's call is looked up on its class, so the class is exchanged for a subclass; parameters keep their names.
    """
    found = 0
    for _, module in model.named_modules():  # type: ignore[no-untyped-call]
        if isinstance(module, Qwen3NextGatedDeltaNet | GatedDeltaNet):
            found += 1
            if not getattr(type(module), "records", False):
                object.__setattr__(module, "__class__", _recording_class(type(module)))
    return found


def _recording_class(base: Any) -> Any:
    project = _project_next if issubclass(base, Qwen3NextGatedDeltaNet) else _project_3_5

    class Recording(base):  # type: ignore[misc]
        records = True

        def __call__(self, inputs: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
            if isinstance(cache, DeltaCache) and cache.recording and mask is None:
                return _recorded(self, project, inputs, cache)
            return super().__call__(inputs, mask, cache)  # type: ignore[no-any-return]

    Recording.__name__ = Recording.__qualname__ = base.__name__
    return Recording


def _project_next(layer: Any, inputs: mx.array) -> Projected:
    """qkv [B, S, C], z [B, S, Hv, Dv], b and a [B, S, Hv] from Qwen3-Next's two interleaved projections."""
    rows = inputs.shape[:2]
    q, k, v, z, b, a = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(inputs), layer.in_proj_ba(inputs))
    return mx.concatenate([x.reshape(*rows, -1) for x in (q, k, v)], axis=-1), z, b, a


def _project_3_5(layer: Any, inputs: mx.array) -> Projected:
    """The same from Qwen3.5's four plain projections."""
    z = layer.in_proj_z(inputs).reshape(*inputs.shape[:2], layer.num_v_heads, layer.head_v_dim)
    return layer.in_proj_qkv(inputs), z, layer.in_proj_b(inputs), layer.in_proj_a(inputs)


def _recorded(
    layer: Any, project: Callable[[Any, mx.array], Projected], inputs: mx.array, cache: DeltaCache
) -> mx.array:
    """The layer's forward on inputs [B, S, H]; leaves `cache` after the last position, and its trail."""
    rows, positions, _ = inputs.shape
    qkv, z, b, a = project(layer, inputs)
    keep = layer.conv_kernel_size - 1
    window = cache[0]
    if window is None:
        window = mx.zeros((rows, keep, layer.conv_dim), dtype=inputs.dtype)
    conv_input = mx.concatenate([window, qkv], axis=1)
    conv_out = silu(layer.conv1d(conv_input))
    q, k, v = (
        part.reshape(rows, positions, heads, size)
        for part, heads, size in zip(
            mx.split(conv_out, [layer.key_dim, 2 * layer.key_dim], -1),
            [layer.num_k_heads, layer.num_k_heads, layer.num_v_heads],
            [layer.head_k_dim, layer.head_k_dim, layer.head_v_dim],
            strict=True,
        )
    )
    q, k = normalize_qk(q, k, inv_scale=layer.head_k_dim**-0.5, eps=1e-6)
    state, outputs, states = cache[1], [], []
    for t in range(positions):
        at = slice(t, t + 1)
        output, state = gated_delta_update(
            q[:, at], k[:, at], v[:, at], a[:, at], b[:, at], layer.A_log, layer.dt_bias, state, None,
            use_kernel=not layer.training,
        )  # fmt: skip
        outputs.append(output)
        states.append(state)
    cache[0] = mx.contiguous(conv_input[:, -keep:])
    cache[1] = state
    cache.trail = Trail(conv_input, tuple(states))
    out = layer.norm(mx.concatenate(outputs, axis=1), z)
    return layer.out_proj(out.reshape(rows, positions, -1))  # type: ignore[no-any-return]
