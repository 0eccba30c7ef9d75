"""How large the pool becomes. Pure; `memory` and the estimates come from outside."""

from dataclasses import dataclass

from mtp_daemon.errors import EnvironmentFailure, UserError
from mtp_daemon.front.memory import Memory
from mtp_daemon.sizes import PoolRequest, binary_bytes
from mtp_protocol.geometry import Geometry

# Left to everything else on the machine: this share of it, and never less than this.
_RESERVE_SHARE = 0.15
_RESERVE_BYTES = 1 << 30
# What MLX and two Python processes take besides the weights.
_OVERHEAD_BYTES = 300 << 20
# A pool of 31 % of a machine's memory was measured at 0.57 tokens a second, one of 59 % at 0.17: past the knee, swap
# and a starved system cost more than the hits gain.
_MOST_SHARE = 0.5


@dataclass(frozen=True)
class Needs:
    """Bytes that the model takes besides the pool."""

    dense: int
    kv: int


def pool_bytes(asked: PoolRequest, geometry: Geometry, memory: Memory, needs: Needs) -> int:
    """Raises UserError when what was asked for is below the model's minimum, EnvironmentFailure when memory is."""
    minimum, everything = geometry.minimum_bytes, geometry.expert_bytes
    if not asked.auto:
        wanted = asked.nbytes if asked.nbytes is not None else round(everything * (asked.share or 0.0))
        if wanted < minimum:
            raise UserError(
                f"a pool of {_beside(wanted, minimum)} is too small: this model needs at least "
                f"{binary_bytes(minimum)} (--pool {-(-minimum // (1 << 10))}KiB), "
                f"and {binary_bytes(everything)} would hold all its experts"
            )
        wanted = min(wanted, everything)
        _check_fits(wanted, memory, needs)
        return wanted
    reserve = max(_RESERVE_BYTES, int(memory.total * _RESERVE_SHARE))
    free = memory.available - needs.dense - needs.kv - reserve - _OVERHEAD_BYTES
    wanted = min(free, int(memory.total * _MOST_SHARE), everything)
    if wanted < minimum:
        raise EnvironmentFailure(
            f"not enough memory: {binary_bytes(memory.available)} are free, the model takes "
            f"{binary_bytes(needs.dense + needs.kv)} besides its pool, {binary_bytes(reserve)} stay in reserve, and "
            f"the smallest pool is {binary_bytes(minimum)}; free some, or give --pool a size to override this estimate"
        )
    return wanted


def _check_fits(pool: int, memory: Memory, needs: Needs) -> None:
    """A size that was asked for is believed, up to all the memory there is: beyond that, every answer would swap."""
    if (whole := pool + needs.dense + needs.kv + _OVERHEAD_BYTES) > memory.total:
        raise EnvironmentFailure(
            f"a pool of {binary_bytes(pool)} does not fit: with {binary_bytes(needs.dense)} of other weights and "
            f"{binary_bytes(needs.kv)} of caches for the whole context that is {binary_bytes(whole)}, and there are "
            f"{binary_bytes(memory.total)} of memory; lower --pool or --context"
        )


def _beside(nbytes: int, other: int) -> str:
    """As people read it, unless the other size reads the same."""
    text = binary_bytes(nbytes)
    return text if text != binary_bytes(other) else f"{nbytes} bytes ({other - nbytes} too few)"
