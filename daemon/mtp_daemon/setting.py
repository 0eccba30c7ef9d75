"""One setting: its name, type, range, default and help, from which both the file and the command line read it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mtp_daemon.errors import UserError

Owner = Literal["front", "loader", "engine"]
Value = str | int | float | bool | None
_BOOLS = {"true": True, "on": True, "false": False, "off": False}


@dataclass(frozen=True)
class Setting:
    """`kind` is the value's type; `owners` are the processes that read it; `low` and `high` are inclusive.

    `none` allows "auto" (the owner chooses), which is stored as None. `check` says what is wrong with a value of the
    right type, or None.
    """

    name: str
    kind: type[str] | type[int] | type[float] | type[bool]
    default: Value
    help: str
    owners: tuple[Owner, ...] = ("front",)
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    none: bool = False
    check: Callable[[Any], str | None] | None = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def range_text(self) -> str:
        """What values there are, for help and for errors."""
        if self.choices:
            text = " | ".join(self.choices)
        elif self.kind is bool:
            text = "true | false"
        elif self.low is not None or self.high is not None:
            low, high = ("" if x is None else str(int(x)) if x == int(x) else f"{x:g}" for x in (self.low, self.high))
            text = f"{low}..{high}"
        else:
            text = {str: "text", int: "a whole number", float: "a number"}[self.kind]
        return f"auto | {text}" if self.none else text

    def read(self, value: Any) -> Value:
        """A value of the configuration file, checked; raises UserError naming the setting."""
        if self.none and value == "auto":
            return None
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind:
            raise UserError(f"{self.name} must be {self.range_text}, not {value!r}")
        if self.choices and value not in self.choices:
            raise UserError(f"{self.name} must be one of {self.range_text}, not {value!r}")
        if isinstance(value, int | float) and self.kind is not bool:
            self._check_range(value)
        if self.check is not None and (fault := self.check(value)):
            raise UserError(f"{self.name}: {fault}")
        checked: Value = value
        return checked

    def read_text(self, text: str) -> Value:
        """The same for a value of the command line."""
        if self.kind is bool:
            if text not in _BOOLS:
                raise UserError(f"{self.name} must be true or false, not {text!r}")
            return _BOOLS[text]
        if self.kind is str or (self.none and text == "auto"):
            return self.read(text)
        try:
            text.encode("ascii")  # Python reads digits of every script; nobody else who sees the file does
            return self.read(self.kind(text))
        except ValueError as error:
            raise UserError(f"{self.name} must be {self.range_text}, not {text!r}") from error

    def _check_range(self, value: float) -> None:
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if not math.isfinite(value) or not low <= value <= high:
            raise UserError(f"{self.name} must lie in {self.range_text}, not {value:g}")
