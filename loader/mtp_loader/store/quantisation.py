"""How a weight is quantised, told from its tensors' types and shapes: a config may be silent or wrong."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mtp_loader.errors import DamagedCheckpoint, NotStreamable
from mtp_protocol.geometry import Mode, Quantisation

_BITS = (2, 3, 4, 5, 6, 8)
_GROUPS = (16, 32, 64, 128)
_BYTE_SCALES: dict[tuple[int, int], Mode] = {(4, 32): "mxfp4", (8, 32): "mxfp8", (4, 16): "nvfp4"}


class Part(NamedTuple):
    """Type and shape of one component of a weight (an expert's row, or a dense tensor)."""

    dtype: str
    shape: tuple[int, ...]


def infer(parts: Mapping[str, Part], inputs: int, where: str, file: str) -> Quantisation:
    """The quantisation of a weight `[…, out, in]` with `inputs` input features.

    `parts` maps component ("weight", "scales", "biases") to its type and shape; types are protocol names
    ("uint32", "bfloat16", …). Only affine keeps scales in a floating type; the byte-scaled modes each allow one pair
    of bits and group. Raises DamagedCheckpoint (`file`, `where`) for shapes that fit no mode.
    """

    def bad(why: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(file, f"{where}: {why}")

    weight, scales, biases = parts["weight"], parts.get("scales"), parts.get("biases")
    if scales is None:
        if weight.dtype in ("uint32", "uint8") or biases is not None:
            raise bad(f"a {weight.dtype} weight without scales")
        if weight.shape[-1] != inputs:
            raise bad(f"the weight has {weight.shape[-1]} input features, not {inputs}")
        return Quantisation()
    if weight.dtype != "uint32" or not scales.shape or not scales.shape[-1] or inputs % scales.shape[-1]:
        raise bad(f"weight {weight.dtype} {list(weight.shape)} does not fit scales {list(scales.shape)}")
    if weight.shape[:-1] != scales.shape[:-1] or (weight.shape[-1] * 32) % inputs:
        raise bad(f"weight {list(weight.shape)} does not fit scales {list(scales.shape)} and {inputs} input features")
    bits, group = weight.shape[-1] * 32 // inputs, inputs // scales.shape[-1]
    if scales.dtype == "uint8":
        mode = _BYTE_SCALES.get((bits, group))
        if mode is None or biases is not None:
            raise bad(f"{bits} bits in groups of {group} with byte scales is no mode of MLX's")
        return Quantisation(mode, bits, group)
    if bits not in _BITS or group not in _GROUPS:
        raise bad(f"{bits} bits in groups of {group} is no mode of MLX's")
    if biases is None or biases != scales:
        raise bad("affine scales need biases of the same type and shape")
    return Quantisation("affine", bits, group)


def infer_experts(
    planes: Sequence[tuple[str, Part]], where: str, file: str
) -> tuple[Quantisation, Quantisation, Quantisation]:
    """Gate's, up's and down's quantisation from an expert's planes, given as (plane name, part) pairs.

    No config is needed: down gives hidden back, so its output rows are gate's input features, and the reverse.
    """
    parts: dict[str, dict[str, Part]] = {"gate": {}, "up": {}, "down": {}}
    for name, part in planes:
        projection, component = name.split(".")
        parts[projection][component] = part
    shapes = {p: parts[p]["weight"].shape for p in parts}
    if any(len(s) != 2 for s in shapes.values()):
        raise NotStreamable(f"{where}: an expert's weights have the shapes {[list(s) for s in shapes.values()]}")
    hidden, inner = shapes["down"][0], shapes["gate"][0]
    if shapes["up"][0] != inner:
        raise DamagedCheckpoint(file, f"{where}: gate has {inner} rows, up has {shapes['up'][0]}")
    for projection, rows in (("gate", inner), ("up", inner), ("down", hidden)):
        bias = parts[projection].get("bias")
        if bias is not None and bias.shape != (rows,):
            raise DamagedCheckpoint(file, f"{where}: {projection}.bias has the shape {list(bias.shape)}, not [{rows}]")
    return (
        infer(parts["gate"], hidden, f"{where}, gate", file),
        infer(parts["up"], hidden, f"{where}, up", file),
        infer(parts["down"], inner, f"{where}, down", file),
    )
