"""A number of a model's config.json, which somebody wrote and nobody has checked."""

from collections.abc import Mapping
from typing import Any

from mtp_daemon.engine.errors import RequestRefused


def config_number(sizes: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """The whole number called `name`, None where there is none, `high` where it is larger.

    Raises RequestRefused, naming it, for anything else than a whole number from `low` up.
    """
    value = sizes.get(name)
    if value is None:
        return None
    whole = type(value) is int or (type(value) is float and value.is_integer())
    if not whole or value < low:
        raise RequestRefused(
            f"config.json: {name} must be a whole number from {low} up, not {str(value)[:40]!r}: mend it"
        )
    return min(int(value), high)
