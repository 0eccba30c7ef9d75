"""A process that only makes and drops tuples does not grow for hours."""

import subprocess
import sys

from mtp_protocol.housekeeping import EVERY_S, Housekeeping

_GROW = """
import sys
from mtp_protocol.housekeeping import Housekeeping
house = Housekeeping(0.0)
before = sys.getallocatedblocks()
for length in range(2, 20):
    for _ in range(2500):
        tuple(x for x in range(length))
grown = sys.getallocatedblocks() - before
looked = house.look(61.0)
print(grown, sys.getallocatedblocks() - before, looked)
"""


def test_freed_tuples_are_given_back() -> None:
    """In a process of its own: the free lists are the interpreter's, and another test may have filled them."""
    grown, kept, looked = subprocess.run(
        [sys.executable, "-c", _GROW], check=True, capture_output=True, text=True
    ).stdout.split()
    assert looked == "True"
    assert int(grown) > 10_000, "this interpreter keeps no freed tuples: the housekeeping may go"
    assert int(kept) < 1000


def test_it_is_not_time_before_it_is_time() -> None:
    house = Housekeeping(100.0)
    assert not house.look(100.0 + EVERY_S - 0.1)
    assert house.look(100.0 + EVERY_S)
    assert not house.look(100.0 + EVERY_S + 1.0)
