"""Policies by name, as settings and the command line spell them."""

from collections.abc import Callable

from mtp_loader.errors import BadRequest
from mtp_loader.policy.interface import Policy
from mtp_loader.policy.lru import Lru

DEFAULT = "lru"

_MAKERS: dict[str, Callable[[], Policy]] = {
    "lru": Lru,
}

NAMES = tuple(_MAKERS)


def make_policy(name: str) -> Policy:
    """A fresh policy for one bank; raises BadRequest with the names there are."""
    try:
        return _MAKERS[name]()
    except KeyError:
        raise BadRequest(f"no eviction policy {name!r}; there are {', '.join(NAMES)}") from None
