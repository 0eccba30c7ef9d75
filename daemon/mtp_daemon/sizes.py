"""Sizes as people write them: `4GiB`, `500MB`, `25%`, `auto`."""

import re
from dataclasses import dataclass

from mtp_daemon.errors import UserError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
}
_NUMBER = re.compile(r"\s*([0-9]{1,24}(?:\.[0-9]{1,24})?)\s*([a-zA-Z]*|%)\s*")


@dataclass(frozen=True)
class PoolRequest:
    """What the user asked of the pool: exactly one of bytes and share is set, neither for "auto"."""

    nbytes: int | None = None
    share: float | None = None

    @property
    def auto(self) -> bool:
        return self.nbytes is None and self.share is None


def parse_pool(text: str) -> PoolRequest:
    """Raises UserError for anything but a size, a percentage above 0 and up to 100, and "auto"."""
    if text.strip().lower() == "auto":
        return PoolRequest()
    match = _NUMBER.fullmatch(text)
    if match is None or (match[2] != "%" and match[2].lower() not in _UNITS):
        raise UserError(f"a pool is a size like 4GiB, a share of all experts like 25%, or auto; not {text!r}")
    number = float(match[1])
    if match[2] == "%":
        if not 0 < number <= 100:
            raise UserError(f"a pool's share lies above 0% and up to 100%, not {text!r}")
        return PoolRequest(share=number / 100)
    nbytes = int(number * _UNITS[match[2].lower()])
    if not 0 < nbytes < 1 << 60:
        raise UserError(f"a pool of {text!r} is not a size")
    return PoolRequest(nbytes=nbytes)


def pool_fault(text: str) -> str | None:
    """What is wrong with a pool's size, None when nothing is."""
    try:
        parse_pool(text)
    except UserError as error:
        return str(error)
    return None


def binary_bytes(count: float) -> str:
    """`1.50 GiB`: memory, which is counted in powers of two."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"
