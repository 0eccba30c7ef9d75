"""Tokens are those of plain mlx-lm whatever is predicted: the truth, the opposite, or nothing but an exception."""

from pathlib import Path

import mlx.core as mx
import pytest

from engine.test_with_loader_process import engine_of
from mtp_daemon.engine.hints import Lookahead
from support.checkpoints import make_checkpoint
from support.loader_process import scripted_front
from support.reference import greedy_reference, greedy_streamed

IDS = [(7 * i * i + 3 * i) % 500 for i in range(12)]
SUPPORT = Path(__file__).resolve().parents[1] / "support"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model") / "m", "qwen3_next", quant="q4g64")


@pytest.mark.parametrize("predictor", ["honest", "lying", "throwing"])
def test_tokens_do_not_depend_on_the_predictor(
    predictor: str, model: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    if predictor == "lying":
        true_guess = Lookahead.guess

        def lie(self: Lookahead, residual: mx.array, beside: list[mx.array]) -> list[mx.array]:
            return true_guess(self, -residual, [])

        monkeypatch.setattr(Lookahead, "guess", lie)
    if predictor == "throwing":
        monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "throwing_predictor"))
    with scripted_front(tmp_path_factory.mktemp("s"), model, widen=True, prefetch=True) as front:
        address = front.start(16)
        with engine_of(front, address, model, 2) as engine:
            engine.stream.join()
            assert greedy_streamed(engine, IDS, 24) == greedy_reference(model, IDS, 24)
            assert engine.stream.stats.hints > 5 and engine.stream.stats.slots_verified > 50
            if predictor == "throwing":  # a person is told as well
                facts = front.await_fact("statistics", lambda told: told.startswith("given up"))
                assert "prediction" not in facts
        said = front.errors.read_text()
    assert ("nothing is read ahead any more" in said) == (predictor == "throwing")
