"""How every command reads its arguments: numbers within their range, and a mistake told in one sentence."""

import argparse
import math
from collections.abc import Callable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Says what is wrong and where help is; argparse's own usage of twenty flags would hide it. Exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def whole(low: int, high: int) -> Callable[[str], int]:
    """An argument's `type`: a whole number from `low` to `high`."""

    def number(text: str) -> int:
        try:
            value = int(text) if text.isascii() else low - 1  # Python reads digits of every script
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}, not {text!r}")
        return value

    return number


def real(low: float, high: float) -> Callable[[str], float]:
    """An argument's `type`: a finite number from `low` to `high`."""

    def number(text: str) -> float:
        try:
            value = float(text) if text.isascii() else math.nan
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be a number from {low:g} to {high:g}, not {text!r}")
        return value

    return number
