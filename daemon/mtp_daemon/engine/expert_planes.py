"""One bank of the pool as the weights of a gated feed-forward: slot numbers where mlx-lm has expert numbers."""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from mtp_protocol.geometry import PROJECTIONS, Bank

Activation = Callable[[mx.array, mx.array], mx.array]
# mlx-lm (SwitchGLU) sorts rows by expert from this many on; the same here, so that the same kernels run.
SORT_FROM = 64


class _Projection:
    """One of gate, up and down: `[slots, out, in]`, quantised or not."""

    def __init__(self, bank: Bank, name: str, planes: Mapping[str, mx.array]) -> None:
        quantisation = getattr(bank, name)
        get: Callable[[str], Any] = lambda component: planes.get(f"{name}.{component}")  # noqa: E731
        self.weight, self.bias = get("weight"), get("bias")
        self.plain = quantisation.mode == "none"
        self.arguments: dict[str, Any] = {}
        self.width: mx.Dtype | None = None
        if self.plain:
            self.weight = self.weight.swapaxes(-1, -2)
            mx.eval(self.weight)
            plane = next(p for p in bank.planes if p.name == f"{name}.weight")
            if plane.dtype != plane.source_dtype:
                # Widened for a backend that gathers one type only: what comes out goes back to the model's own.
                self.width = self.weight.dtype
        else:
            self.arguments = {
                "group_size": quantisation.group_size,
                "bits": quantisation.bits,
                "mode": quantisation.mode,
                "transpose": True,
                "global_scale": get("global_scale"),
            }
            self.scales, self.biases = get("scales"), get("biases")

    def __call__(self, x: mx.array, slots: mx.array, sorted_slots: bool) -> mx.array:
        """`x` `[..., 1, in]` through the weights in `slots` `[...]`: `[..., 1, out]`."""
        if self.plain:
            dtype = x.dtype
            if self.width is not None:
                x = x.astype(self.width)
            y = mx.gather_mm(x, self.weight, rhs_indices=slots, sorted_indices=sorted_slots)
            if self.width is not None:
                y = y.astype(dtype)
        else:
            y = mx.gather_qmm(
                x,
                self.weight,
                self.scales,
                self.biases,
                rhs_indices=slots,
                sorted_indices=sorted_slots,
                **self.arguments,
            )
        if self.bias is not None:
            y = y + mx.expand_dims(self.bias[slots], -2)
        return y


class ExpertPlanes:
    """The feed-forwards of one bank. Makes no copy of a plane and no array but its results."""

    def __init__(self, bank: Bank, planes: Mapping[str, mx.array]) -> None:
        self.gate, self.up, self.down = (_Projection(bank, name, planes) for name in PROJECTIONS)

    def rows(self, x: mx.array, slots: mx.array, activation: Activation, sorted_slots: bool) -> mx.array:
        """`x` `[..., 1, H]`, `slots` `[...]` uint32: `[..., 1, H]`, with SwitchGLU's operations in its order."""
        up = self.up(x, slots, sorted_slots)
        gate = self.gate(x, slots, sorted_slots)
        return self.down(activation(up, gate), slots, sorted_slots)

    def gather(self, x: mx.array, slots: mx.array, activation: Activation) -> mx.array:
        """`x` `[..., H]`, `slots` `[..., K]` uint32: `[..., K, H]`, as SwitchGLU computes it."""
        if slots.size < SORT_FROM:
            return self.rows(mx.expand_dims(x, (-2, -3)), slots, activation, False).squeeze(-2)
        order = mx.argsort(slots.flatten())
        rows = x.reshape(-1, 1, x.shape[-1])[order // slots.shape[-1]]
        y = self.rows(rows, slots.flatten()[order], activation, True)
        return mx.unflatten(y[mx.argsort(order)], 0, slots.shape).squeeze(-2)
