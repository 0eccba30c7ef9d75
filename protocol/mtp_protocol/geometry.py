"""The shape of a model's experts and of the pool that holds them.

Both ends of the pool need the same picture: the loader writes rows of planes, decode reads them as arrays.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal

DTYPE_BYTES = {"uint32": 4, "uint8": 1, "float32": 4, "bfloat16": 2, "float16": 2}
Dtype = Literal["uint32", "uint8", "float32", "bfloat16", "float16"]
Mode = Literal["none", "affine", "mxfp4", "mxfp8", "nvfp4"]

PROJECTIONS = ("gate", "up", "down")
COMPONENTS = ("weight", "scales", "biases", "bias", "global_scale")


@dataclass(frozen=True)
class Plane:
    """One tensor that every expert of a bank has; a pool plane is the array `[slots, *shape]` of `dtype`.

    `name` is `"<projection>.<component>"`, for example `"gate.weight"`. `source_dtype` is the type on disk; where it
    differs from `dtype`, the loader widens a row as it fills a slot (MLX's CPU backend gathers float32 only).
    """

    name: str
    dtype: Dtype
    source_dtype: Dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one expert's row in the pool."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def source_bytes(self) -> int:
        """Bytes of one expert's row on disk."""
        return prod(self.shape) * DTYPE_BYTES[self.source_dtype]


@dataclass(frozen=True)
class Quantisation:
    """How one projection's weight is stored; `mode` "none" means plain floating point (bits, group_size 0)."""

    mode: Mode = "none"
    bits: int = 0
    group_size: int = 0


@dataclass(frozen=True)
class Bank:
    """All layers whose experts have one geometry; they share slots."""

    bank: int
    planes: tuple[Plane, ...]
    gate: Quantisation
    up: Quantisation
    down: Quantisation
    layers: tuple[int, ...]

    @property
    def slot_bytes(self) -> int:
        """Bytes one resident expert takes in the pool."""
        return sum(p.row_bytes for p in self.planes)

    @property
    def source_bytes(self) -> int:
        """Bytes read from disk for one expert, padding not counted."""
        return sum(p.source_bytes for p in self.planes)


@dataclass(frozen=True)
class Layer:
    """One MoE layer. `layer` is the decoder layer's index; the MTP head's layers follow the trunk's (N, N+1, …)."""

    layer: int
    bank: int
    experts: int
    top_k: int
    is_head: bool = False


@dataclass(frozen=True)
class Geometry:
    """Everything about a checkpoint's experts that the pool and decode need.

    `fingerprint` identifies the checkpoint's bytes, not its name: nothing may be kept across two of them.
    `reads_per_expert` is 1 for a packed store, one per tensor for an mlx-lm checkpoint.
    """

    fingerprint: str
    model_type: str
    packed: bool
    reads_per_expert: int
    banks: tuple[Bank, ...]
    layers: tuple[Layer, ...]

    @property
    def expert_bytes(self) -> int:
        """Pool bytes that would hold every expert of every layer, the head's included."""
        return sum(layer.experts * self.banks[layer.bank].slot_bytes for layer in self.layers)

    @property
    def worst_bytes_per_token(self) -> int:
        """Bytes read for one token when every expert it needs misses (the head's layers not counted)."""
        return sum(y.top_k * self.banks[y.bank].source_bytes for y in self.layers if not y.is_head)

    def minimum_slots(self, bank: int) -> int:
        """The fewest slots a bank works with: one token's experts of one layer."""
        return max(y.top_k for y in self.layers if y.bank == bank)

    @property
    def minimum_bytes(self) -> int:
        """The smallest pool this model runs in."""
        return sum(self.minimum_slots(b.bank) * b.slot_bytes for b in self.banks)


@dataclass(frozen=True)
class BankLayout:
    """Where a bank's planes lie in the pool: `plane_offsets[i]` is the byte offset of `Bank.planes[i]`."""

    bank: int
    slots: int
    plane_offsets: tuple[int, ...]


@dataclass(frozen=True)
class PoolLayout:
    """The pool's region: `generation` changes when the region itself is replaced (macOS resize)."""

    generation: int
    nbytes: int
    banks: tuple[BankLayout, ...]
