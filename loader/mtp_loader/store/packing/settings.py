"""What a user may ask of a pack, checked before anything is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mtp_loader.errors import BadRequest
from mtp_protocol.geometry import Mode, Quantisation

_AFFINE_BITS = (2, 3, 4, 5, 6, 8)
_AFFINE_GROUPS = (32, 64, 128)
_FIXED: dict[str, tuple[int, int]] = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
Scales = Literal["keep", "float32"]


@dataclass(frozen=True)
class PackSettings:
    """How to pack. `quantise` is None to keep every weight as it is.

    `scales` None means float32 where something is quantised on a machine without Metal (MLX's CPU backend moves
    4-bit weights with bf16 scales eight times more slowly), and "keep" otherwise. `head` is an MTP head's own file
    or directory.
    """

    quantise: Quantisation | None = None
    scales: Scales | None = None
    head: Path | None = None

    def plain(self) -> dict[str, Any]:
        """The settings as the store's index records them."""
        q = self.quantise
        return {
            "quantise": None if q is None else {"mode": q.mode, "bits": q.bits, "group_size": q.group_size},
            "scales": self.scales,
        }


def quantisation_of(bits: int | None, group: int | None, mode: str | None) -> Quantisation | None:
    """`--q-bits`, `--q-group` and `--q-mode` together; None where none is given. Raises BadRequest."""
    if bits is None and group is None and mode is None:
        return None
    mode = mode or "affine"
    if mode in _FIXED:
        fixed_bits, fixed_group = _FIXED[mode]
        if bits not in (None, fixed_bits) or group not in (None, fixed_group):
            raise BadRequest(f"--q-mode {mode} has {fixed_bits} bits in groups of {fixed_group}; leave out the others")
        chosen: Mode = mode  # type: ignore[assignment]  # a key of _FIXED
        return Quantisation(chosen, fixed_bits, fixed_group)
    if mode != "affine":
        raise BadRequest(f"--q-mode {mode}: choose one of affine, {', '.join(_FIXED)}")
    bits, group = bits or 4, group or 64
    if bits not in _AFFINE_BITS:
        raise BadRequest(f"--q-bits {bits}: choose one of {', '.join(map(str, _AFFINE_BITS))}")
    if group not in _AFFINE_GROUPS:
        raise BadRequest(f"--q-group {group}: choose one of {', '.join(map(str, _AFFINE_GROUPS))}")
    return Quantisation("affine", bits, group)
