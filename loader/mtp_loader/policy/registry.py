"""Policies by name, as settings and the command line spell them."""

from collections.abc import Callable, Sequence

from mtp_loader.errors import BadRequest
from mtp_loader.policy.belady import Belady
from mtp_loader.policy.decayed import DecayedFrequency
from mtp_loader.policy.forecast import Forecast
from mtp_loader.policy.guard import SmallPoolGuard
from mtp_loader.policy.interface import Event, Policy
from mtp_loader.policy.layer_lfu import LayerLfu
from mtp_loader.policy.lfru import Lfru
from mtp_loader.policy.lru import Lru
from mtp_loader.policy.s3fifo import S3Fifo

DEFAULT = "forecast"
CLAIRVOYANT = "belady"

_MAKERS: dict[str, Callable[[], Policy]] = {
    "lru": Lru,
    "decayed": DecayedFrequency,
    "lfru": Lfru,
    "layer-lfu": LayerLfu,
    "s3-fifo": S3Fifo,
    "forecast": Forecast,
}

NAMES = tuple(_MAKERS)


def make_policy(name: str, future: Sequence[Event] | None = None) -> Policy:
    """A fresh policy for one bank, guarded for small pools; raises BadRequest with the names there are.

    `future`, every event to come, makes `"belady"` possible, which a running service cannot have.
    """
    if name == CLAIRVOYANT and future is not None:
        return Belady(future)
    if name not in _MAKERS:
        raise BadRequest(f"no eviction policy {name!r}; there are {', '.join(NAMES)}")
    return SmallPoolGuard(_MAKERS[name]())
