"""The control of every guess: an adapter's probe on its own layer's residual is the true gate, and recalls 100 %."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtp_daemon.engine import install
from mtp_daemon.engine.hints import Norm, Probe
from mtp_daemon.engine.stream import DECODE, StreamSettings
from mtp_loader.policy.interface import Event, key_of
from mtp_loader.predict.blend import LayerShape, Predictor
from mtp_loader.service.told import recall_by_source
from support.checkpoints import make_checkpoint
from support.families import FAMILIES
from support.reference import greedy_streamed
from support.waiting import until

TOKENS = 16
Ranked = list[tuple[int, float]]


class KeepingNorm(Norm):
    """Keeps every residual that its layer's norm was given, in order."""

    @property
    def residual(self) -> mx.array | None:  # type: ignore[override]
        return self.latest

    @residual.setter
    def residual(self, rows: mx.array | None) -> None:
        self.latest = rows
        if rows is not None:
            self.__dict__.setdefault("kept", []).append(rows)


def gates_of(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[Any, Probe]]:
    """Filled while a model is loaded: by layer, the norm before its MoE block and the adapter's probe."""
    found: dict[int, tuple[Any, Probe]] = {}
    plain = install._norm_and_probe

    def remember(module: Any, block_path: str, gate: Probe) -> tuple[Norm, Probe] | None:
        pair = plain(module, block_path, gate)
        if pair is not None:
            found[install.layer_of_path(block_path)] = pair
        return pair

    monkeypatch.setattr(install, "Norm", KeepingNorm)
    monkeypatch.setattr(install, "_norm_and_probe", remember)
    return found


def best(probe: Probe, residual: mx.array, top_k: int) -> Ranked:
    likes = np.array(probe(residual[0, -1]).astype(mx.float32))
    return [(int(e), float(min(max(likes[e], 0.0), 1.0))) for e in np.argsort(-likes, kind="stable")[:top_k]]


def recalled(used: list[Any], hints: list[dict[int, Ranked]], shapes: dict[int, LayerShape]) -> float:
    """What the loader's own meters say of these hints, given one layer ahead of this routing."""
    predictor = Predictor(shapes)
    for step, (told, hinted) in enumerate(zip(used, hints, strict=True), start=1):
        predictor.on_start(told.tokens, step)
        for layer, rows, _weights in told.routing:
            predictor.on_hint(step, ((layer, hinted[layer]),))
            predictor.wanted(64)
            predictor.on_event(Event(layer, tuple(sorted(key_of(layer, e) for e in rows[0])), (), 1))
    return recall_by_source(predictor.meters)["hint1"]["at_k"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_true_gate_recalls_everything(
    family: str, tmp_path: Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that is not its block's router (a bias left out, another score, another norm) would guess worse for ever
    and nobody would know: guesses are allowed to miss. With the residual of the layer before it must recall less.
    """
    gates = gates_of(monkeypatch)
    served = serve(make_checkpoint(tmp_path / "m", family, quant="q4g64"), 0.25, settings=StreamSettings(hints_ahead=2))
    greedy_streamed(served, [5, 9, 200], TOKENS)
    served.stream.report()
    until("the loader hears of all", lambda: len(served.loader.used) == TOKENS + 1)
    used = [told for told in served.loader.used if told.phase == DECODE]
    shapes = {y.layer: LayerShape(y.experts, y.top_k) for y in served.stream.geometry.layers}
    assert sorted(gates) == sorted(shapes), "every streamed layer has an adapter"
    true: list[dict[int, Ranked]] = [{} for _ in used]
    stale: list[dict[int, Ranked]] = [{} for _ in used]
    for layer, (norm, probe) in gates.items():
        before = gates[max(min(gates), layer - 1)][0]
        for i in range(TOKENS):
            true[i][layer] = best(probe, norm.kept[i - TOKENS], shapes[layer].top_k)
            stale[i][layer] = best(probe, before.kept[i - TOKENS], shapes[layer].top_k)
    assert recalled(used, true, shapes) == 1.0
    assert recalled(used, stale, shapes) < 1.0
