"""A synthetic checkpoint routes by its plan, or a benchmark on it says nothing."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.switch_layers import SwitchGLU
from mlx_lm.utils import load

from mtp_daemon.bench.cli import main
from mtp_daemon.bench.recorded import Recorded, read_recorded
from mtp_daemon.bench.routing_plan import random_plan, recorded_plan
from mtp_daemon.bench.synth import Shape
from mtp_daemon.errors import UserError

SMALL = ["--layers", "4", "--experts", "16", "--top-k", "4", "--hidden", "128", "--inner", "64", "--tokens", "64"]

TRACE = """# route_trace v1 model=m n_expert=8
# layer=0 expert_bytes=10
# layer=1 expert_bytes=10
turn,phase,step,layer,slot,expert,weight,residency,expert_bytes
0,0,0,0,0,7,1.0,0,0
0,1,0,0,0,3,0.6,0,0
0,1,0,0,1,1,0.4,0,0
0,1,0,1,0,2,1.0,0,0
0,1,1,0,0,5,1.0,0,0
0,1,1,1,0,2,1.0,0,0
"""


def _routed(directory: Path, tokens: list[int], monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[int]]:
    """Expert ids of each layer `[tokens, top_k]`, and the greedy next token of each position."""
    seen: list[Any] = []
    call = SwitchGLU.__call__

    def watch(self: SwitchGLU, x: mx.array, indices: mx.array) -> mx.array:
        seen.append(np.array(indices)[0])
        return call(self, x, indices)

    monkeypatch.setattr(SwitchGLU, "__call__", watch)
    model = load(str(directory))[0]
    return seen, model(mx.array([tokens])).argmax(-1)[0].tolist()


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_next"])
def test_the_router_follows_the_plan_and_decoding_walks_it(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    assert main(["synth", str(out), "--family", family, *SMALL, "--seed", "3"]) == 0
    plan = random_plan(4, 64, 16, 4, 3)
    tokens = list(range(20, 40))
    seen, following = _routed(out, tokens, monkeypatch)
    for layer in range(4):
        for position, token in enumerate(tokens):
            assert set(seen[layer][position]) == set(plan[layer, token]), (layer, token)
    assert following == [t + 1 for t in tokens]
    assert json.loads((out / "config.json").read_text())["mtpd_synthetic"]["routing"] == "random"


def test_a_trace_s_decode_steps_are_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    plan = recorded_plan(read_recorded(path), layers=2, tokens=4, experts=8, top_k=2)
    assert plan[0].tolist()[:3] == [[3, 1], [5, 3], [3, 1]], "its own experts first, then the most recent ones"
    assert all(2 in row for row in plan[1].tolist())
    assert all(len(set(row)) == 2 for row in plan.reshape(-1, 2).tolist())


def test_more_experts_than_were_recorded_share_the_top_k_and_are_all_used(tmp_path: Path) -> None:
    steps = tuple({0: (step % 4, (step + 1) % 4)} for step in range(6))
    plan = recorded_plan(Recorded((0,), 4, steps), layers=1, tokens=8, experts=8, top_k=4)
    assert plan[0, 0].tolist() == [0, 7, 1, 4], "the second lot runs half a recording later: 3 and 0, of its own four"
    assert {e for row in plan[0].tolist() for e in row} == set(range(8))
    assert all(sum(e < 4 for e in row) == 2 for row in plan[0].tolist())


def test_the_hottest_experts_are_those_that_most_steps_used() -> None:
    steps = ({0: (1, 2), 1: (7, 8)}, {0: (1, 3), 1: (7, 9)}, {0: (1, 2)})
    assert Recorded((0, 1), 10, steps).hottest(3) == ((0, 1), (0, 2), (1, 7))


def test_what_cannot_be_made_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="at most hidden"):
        Shape(hidden=64, tokens=65)
    taken = tmp_path / "taken"
    taken.mkdir()
    assert main(["synth", str(taken), *SMALL]) == 2
    assert main(["synth", str(tmp_path / "x"), *SMALL, "--routing", "no-such-file"]) == 2
    assert main(["synth", str(tmp_path / "x"), *SMALL, "--size", "25%"]) == 2
    assert "no routing trace no-such-file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [taken]
