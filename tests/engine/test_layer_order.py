"""What one layer does in which order, and how often: evaluations and messages. None of it depends on the clock."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mtp_daemon.engine.residency import ABSENT
from support.checkpoints import make_checkpoint
from support.reference import streamed_logits
from support.waiting import until

TOKEN = 5


class Steps:
    """What happens from now on: `begin` (work for the device), `wait` (for it), and the messages sent."""

    def __init__(self, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        for name, step in (("async_eval", "begin"), ("eval", "wait")):
            monkeypatch.setattr(mx, name, self._noting(step, getattr(mx, name)))
        socket = served.stream.link._socket
        send = socket.send
        socket.send = lambda message: (self.seen.append(type(message).__name__), send(message))[1]

    def _noting(self, step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            self.seen.append(step)
            return call(*args)

        return noting


def one_token(served: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps of one forward; the last is the wait for its result."""
    with monkeypatch.context() as patched:
        steps = Steps(served, patched)
        streamed_logits(served, [[TOKEN]])
    return steps.seen


@pytest.mark.parametrize(("family", "shared"), [("qwen3_moe", 0), ("qwen3_next", 1)])
def test_a_hit_takes_one_wait_and_no_message(
    family: str, shared: int, tmp_path: Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer: its router begins, the shared expert behind it, then the host waits for the router alone. Only in
    the first is there a message: what the forward before routed to, told while the device has something to do.
    """
    path = make_checkpoint(tmp_path / "m", family, quant="q4g64")
    served = serve(path, 0.9)
    for _ in range(3):
        streamed_logits(served, [[TOKEN]])
    seen = one_token(served, monkeypatch)
    layers = len(served.stream.geometry.layers)
    layer = ["begin", *["begin"] * shared, "wait", "begin"]
    first = [*layer[: 1 + shared], "Used", *layer[1 + shared :]]
    assert seen == first + layer * (layers - 1) + ["wait"]


def test_a_layer_asks_once_and_the_longer_half_begins_first(
    tmp_path: Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One Need a layer, whatever it lacks. Where as much is resident as is missing, that begins before the Need goes;
    where more is missing, the reads are what takes longest and are asked for at once.
    """
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    asked = serve(path, 0.9)
    streamed_logits(asked, [[TOKEN]])
    needs = asked.loader.needs
    layers = len(asked.stream.geometry.layers)
    assert len(needs) == layers and all(len(need.experts) == 2 for need in needs)

    served = serve(path, 0.9)
    first, kept = needs[0].layer, needs[0].experts[0]
    served.loader.prefetch(first, (kept,))

    def told() -> bool:
        served.stream.settle()
        return bool(served.stream.residency.table(first)[kept] != ABSENT)

    until("the engine knows of it", told)
    seen = one_token(served, monkeypatch)
    assert seen[:4] == ["begin", "wait", "begin", "Need"], "one of two is resident"
    assert seen[4:].index("Need") < seen[4:].index("wait") + 2, "nothing is resident in the second layer"
    counts = Counter(seen)
    assert counts["Need"] == counts["wait"] - 1 == layers
    arrivals = 2 * layers - 1
    assert counts["begin"] <= layers + 1 + arrivals, "router, the half that was resident, and at most each arrival"
