"""What the front reads in one turn of its loop is bounded by time: checking one message may take seconds."""

import time
from types import SimpleNamespace

import pytest

from mtp_daemon.front.front import Front
from mtp_protocol import client_messages as c


def test_messages_that_take_long_to_check_end_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many in one turn would leave every client without a word for longer than it believes in the service."""
    clock, taken = [0.0], [0]

    def take(client: bytes, message: c.FromClient, now: float) -> None:
        taken[0] += 1
        clock[0] += 1.0 if taken[0] < 1000 else 1e9

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    front = Front.__new__(Front)
    front._port = SimpleNamespace(receive=lambda: (b"client", c.Status(1)))  # type: ignore[assignment]
    front._desk = SimpleNamespace(take=take)  # type: ignore[assignment]
    front._read_clients(0.0)
    assert taken[0] == 1
