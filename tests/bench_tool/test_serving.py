"""The loader tells of itself once a second: what is counted for an answer must be its own, not the one before's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from mtp_client.client import Client
from mtp_daemon.bench.serving import Served, Service, hit_rate
from mtp_daemon.errors import EnvironmentFailure

SERVED = Served([1], {"hits": 6, "misses": 4})


class _Beats:
    """A client whose service tells these (hits, misses) one after the other, and the last for ever."""

    def __init__(self, *beats: tuple[int, int]) -> None:
        self._beats = self._endless(beats)

    @staticmethod
    def _endless(beats: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
        yield from beats
        while True:
            yield beats[-1]

    def status(self) -> dict[str, Any]:
        hits, misses = next(self._beats)
        return {"experts": {"hits": hits, "misses": misses}}


def _service(*beats: tuple[int, int]) -> Service:
    return Service(cast(Client, _Beats(*beats)), Path("nowhere"))


def test_counts_are_waited_for_until_they_hold_the_whole_answer() -> None:
    before = {"hits": 20, "misses": 10}
    fresh = _service((20, 10), (23, 12), (26, 14)).loader_counts(before, SERVED)
    assert (fresh["hits"], fresh["misses"]) == (26, 14)


def test_books_that_never_agree_are_said_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtp_daemon.bench.serving.BOOKS_TIMEOUT_S", 0.1)
    with pytest.raises(EnvironmentFailure, match="heard of 39 requests, the engine made 40"):
        _service((25, 14)).loader_counts({"hits": 20, "misses": 10}, SERVED)


def test_a_hit_rate_is_of_what_was_asked_for() -> None:
    assert SERVED.hit_rate == 0.6
    assert hit_rate({"hits": 0, "misses": 0}) == 1, "nothing was asked for, so nothing was missing"
