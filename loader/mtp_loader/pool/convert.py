"""An expert's bytes on their way from the file's types to the pool's, and whether they are numbers at all."""

import numpy as np
import numpy.typing as npt

from mtp_protocol.geometry import Bank, Plane

Bytes = memoryview


def widen_into(row: Bytes, source: Bytes, plane: Plane) -> None:
    """Writes `source` (plane.source_dtype) into `row` (plane.dtype): the same, or bf16/f16 made float32 exactly."""
    if plane.source_dtype == plane.dtype:
        np.copyto(np.frombuffer(row, np.uint8), np.frombuffer(source, np.uint8))
    elif plane.source_dtype == "bfloat16":  # the upper half of a float32
        np.left_shift(np.frombuffer(source, np.uint16), 16, out=np.frombuffer(row, np.uint32), dtype=np.uint32)
    else:
        np.copyto(np.frombuffer(row, np.float32), np.frombuffer(source, np.float16))


def source_bytes_of(row: Bytes, plane: Plane) -> Bytes:
    """What `widen_into` made the row from; widening loses nothing."""
    if plane.source_dtype == plane.dtype:
        return row
    if plane.source_dtype == "bfloat16":
        return (np.frombuffer(row, np.uint32) >> 16).astype(np.uint16).data.cast("B")
    return np.frombuffer(row, np.float32).astype(np.float16).data.cast("B")


def not_a_number(bank: Bank, rows: list[Bytes]) -> str | None:
    """The name of the first plane of an expert that holds a NaN or an infinity; None when all are finite."""
    for plane, row in zip(bank.planes, rows, strict=True):
        if not _finite(bank, plane, row):
            return plane.name
    return None


def _finite(bank: Bank, plane: Plane, row: Bytes) -> bool:
    match plane.dtype:
        case "float32":
            return bool(np.isfinite(np.frombuffer(row, np.float32)).all())
        case "bfloat16":
            return _no_exponent(np.frombuffer(row, np.uint16), 0x7F80)
        case "float16":
            return _no_exponent(np.frombuffer(row, np.uint16), 0x7C00)
    projection, component = plane.name.split(".", 1)
    mode = {"gate": bank.gate, "up": bank.up, "down": bank.down}[projection].mode
    codes = np.frombuffer(row, np.uint8)
    if component == "scales" and mode in ("mxfp4", "mxfp8"):  # E8M0: one code is NaN
        return not bool((codes == 0xFF).any())
    if (component == "scales" and mode == "nvfp4") or (component == "weight" and mode == "mxfp8"):  # E4M3
        return not bool(((codes & 0x7F) == 0x7F).any())
    return True


def _no_exponent(words: npt.NDArray[np.uint16], exponent: int) -> bool:
    """Whether no word has all exponent bits set, which is an infinity or a NaN."""
    return not bool(((words & exponent) == exponent).any())
