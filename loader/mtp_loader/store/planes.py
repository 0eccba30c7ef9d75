"""One plane of one layer's experts in a plain checkpoint, and how its rows are found."""

from collections.abc import Sequence
from dataclasses import dataclass

from mtp_loader.errors import DamagedCheckpoint, LoaderBug, NotStreamable
from mtp_loader.store.safetensors import Tensor
from mtp_protocol.geometry import COMPONENTS, DTYPE_BYTES, PROJECTIONS, Dtype

_DTYPES: dict[str, Dtype] = {"U32": "uint32", "U8": "uint8", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
PLANE_NAMES = tuple(f"{p}.{c}" for p in PROJECTIONS for c in COMPONENTS)


@dataclass(frozen=True)
class PlaneSource:
    """One plane of one layer's experts: one stacked tensor, or one tensor an expert.

    `shape` and `nbytes` are one expert's row. A stacked tensor's slice of an expert is cut in `parts` equal parts of
    which this plane is number `part`; `interleaved` parts take turns row by row instead of following each other.
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    nbytes: int
    tensors: tuple[Tensor, ...]
    experts: int
    part: int = 0
    parts: int = 1
    interleaved: bool = False

    def locate(self, expert: int) -> tuple[Tensor, int]:
        """The tensor that holds an expert's row, and the row's offset in that tensor's file."""
        if self.interleaved:
            raise LoaderBug(f"{self.name}: an interleaved row is not one range")
        if len(self.tensors) > 1:
            return self.tensors[expert], self.tensors[expert].offset
        tensor = self.tensors[0]
        return tensor, tensor.offset + (expert * self.parts + self.part) * self.nbytes

    def slab(self, expert: int) -> tuple[Tensor, int, int]:
        """Where an expert's slice with all of its parts lies: tensor, offset in its file, bytes."""
        tensor = self.tensors[0]
        nbytes = self.nbytes * self.parts
        return tensor, tensor.offset + expert * nbytes, nbytes


def plane_dtype(tensor: Tensor) -> Dtype:
    """The protocol's name of a tensor's type; raises NotStreamable for the types that cannot stream, FP8 by name."""
    if tensor.is_fp8:
        raise NotStreamable(
            f"{tensor.path.name}: tensor {tensor.name} is FP8 ({tensor.dtype}); convert the model to bf16 or to one of "
            "mlx's quantisations first"
        )
    if tensor.dtype not in _DTYPES:
        raise NotStreamable(
            f"{tensor.path.name}: tensor {tensor.name} has the type {tensor.dtype}, which cannot stream"
        )
    return _DTYPES[tensor.dtype]


def make_plane(
    name: str,
    tensors: Sequence[Tensor],
    shape: tuple[int, ...],
    experts: int,
    *,
    part: int = 0,
    parts: int = 1,
    interleaved: bool = False,
    dtype: Dtype | None = None,
) -> PlaneSource:
    """A plane over one stacked tensor or over `experts` tensors of one type and shape.

    `dtype` overrides the tensors' own where their bytes are packed words. Raises DamagedCheckpoint where a tensor
    differs from its siblings, NotStreamable for a type that cannot stream.
    """
    first = tensors[0]
    for tensor in tensors:
        source = plane_dtype(tensor)
        if (tensor.dtype, tensor.shape) != (first.dtype, first.shape):
            raise DamagedCheckpoint(
                tensor.path,
                f"tensor {tensor.name} is {tensor.dtype} {list(tensor.shape)}; its siblings are {first.dtype} "
                f"{list(first.shape)}",
            )
    nbytes = DTYPE_BYTES[dtype or source]
    for length in shape:
        nbytes *= length
    total = sum(t.nbytes for t in tensors)
    if not nbytes or nbytes * parts * experts != total:
        raise DamagedCheckpoint(
            first.path, f"tensor {first.name} {list(first.shape)} does not hold {experts} experts' {name} {list(shape)}"
        )
    return PlaneSource(name, dtype or source, shape, nbytes, tuple(tensors), experts, part, parts, interleaved)
