"""The one check that a number given by somebody lies where it may."""

from math import isfinite


def within(name: str, value: float, low: float, high: float) -> None:
    """Raises ValueError, naming `name`, unless `value` is a number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or not low <= value <= high:
        raise ValueError(f"{name} must lie between {low} and {high}, not {value!r}")
