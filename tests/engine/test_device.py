"""What is wired on Metal. Only a Mac has it: here its calls are written down instead."""

import sys
from typing import Any

import mlx.core as mx
import pytest

from mtp_daemon.engine.device import CACHE_BYTES, release, wire

RECOMMENDED = 10 << 30


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": RECOMMENDED})
    monkeypatch.setattr(mx, "set_wired_limit", asked.append)
    return asked


def test_what_is_wired_is_the_services_own_budget_and_nothing_stays(wired: list[int]) -> None:
    """More would take memory from everything else on the machine, for nothing."""
    wire(4 << 30)
    wire(40 << 30)
    release()
    assert wired == [(4 << 30) + CACHE_BYTES, RECOMMENDED, 0]


def test_the_cpu_backend_wires_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise AssertionError("there is nothing to wire")

    monkeypatch.setattr(mx, "set_wired_limit", refuse)
    monkeypatch.setattr(sys, "platform", "linux")
    wire(1 << 30)
    release()
