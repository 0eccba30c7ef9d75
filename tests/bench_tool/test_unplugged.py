"""A mechanism that is unplugged shows in the figures: a head that is not the model's, a disk that nobody foresees."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from mtp_daemon.bench.cli import main
from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.mtp.head import MtpHead
from mtp_loader.replay.disk import Machine
from mtp_loader.replay.table import Plan, rows
from mtp_loader.replay.trace import DECODE, Forward, LayerFacts, Trace, event_of
from mtp_loader.store.checksum import checksum_of
from mtp_loader.store.resolve import resolve_model
from support.decoding import decoder
from support.resident import resident_target

PROMPT, TOKENS = list(range(1, 17)), 40


@pytest.fixture(scope="module")
def target() -> Target:
    return resident_target(resolve_model("demo"))


def _decode(on: Target, depth: int) -> tuple[list[int], float]:
    """Tokens, and the share of first drafts that were right."""
    decoding = decoder(on, PROMPT, depth=depth)
    ids: list[int] = []
    while len(ids) < TOKENS:
        ids += decoding.round(TOKENS - len(ids)).ids
    acceptance = decoding.stats()["acceptance_by_position"]
    decoding.close()
    return ids, acceptance[0] if acceptance else 0.0


def _shuffle(head: MtpHead) -> None:
    """Every matrix's rows in another order; the numbers stay those of a trained head."""
    mx.random.seed(5)
    shuffled = [(name, a[mx.random.permutation(a.shape[0])]) for name, a in tree_flatten(head.parameters())]
    head.update(tree_unflatten(shuffled))
    mx.eval(head.parameters())


def test_a_shuffled_head_is_right_about_never_and_the_tokens_stay(target: Target) -> None:
    assert target.head is not None
    plain, _ = _decode(target, 0)
    drafted, acceptance = _decode(target, 2)
    assert drafted == plain and acceptance > 0.4, "the head as it was trained"
    _shuffle(target.head)
    drafted, acceptance = _decode(target, 2)
    assert drafted == plain and acceptance < 0.1


def _with_a_shuffled_head(directory: Path) -> Path:
    """The demo model, its head's matrices with their rows in another order; the store's own checksums are right."""
    shutil.copytree(resolve_model("demo"), directory)
    head = directory / "mtp-dense.safetensors"
    mx.random.seed(5)
    tensors: dict[str, mx.array] = dict(mx.load(str(head)))  # type: ignore[arg-type]
    shuffled = {name: a[mx.random.permutation(a.shape[0])] for name, a in tensors.items()}
    mx.eval(shuffled)
    mx.save_safetensors(str(head), shuffled)
    index: dict[str, Any] = json.loads((directory / "index.json").read_text())
    entry = next(file for file in index["files"] if file["name"] == head.name)
    entry |= {"nbytes": head.stat().st_size, "crc32": checksum_of(head)}
    (directory / "index.json").write_text(json.dumps(index))
    return directory


def test_mtp_bench_shows_a_shuffled_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the running service: nearly nothing is accepted, a round commits about one token, and every token is right."""
    model = _with_a_shuffled_head(tmp_path / "shuffled")
    short = ["--tokens", "32", "--repeats", "1", "--depths", "2", "--pool", "50%", "--reference", "demo"]
    assert main(["spec", str(model), *short, "--json"]) == 0
    plain, drafted = json.loads(capsys.readouterr().out)["results"]["depths"]
    assert plain["exact_match"] and drafted["exact_match"] and drafted["mismatches"] == 0
    assert drafted["acceptance_by_position"][0] < 0.1 and drafted["tokens_per_round"] < 1.1


LAYERS, EXPERTS, BYTES = 6, 32, 1000


def _periodic(steps: int) -> Trace:
    """Routing that returns every sixteen tokens: too late for a small pool, and never a surprise."""
    forwards = []
    for step in range(steps):
        chosen = (2 * step % EXPERTS, (2 * step + 1) % EXPERTS)
        routed = tuple((layer, (chosen,)) for layer in range(LAYERS))
        events = tuple(event_of(layer, [chosen], [[0.5, 0.5]]) for layer in range(LAYERS))
        forwards.append(Forward(step, DECODE, (step % 16,), events, routed))
    return Trace("periodic", "m", {y: LayerFacts(y, 0, EXPERTS, 2, BYTES) for y in range(LAYERS)}, forwards)


def test_without_prefetching_the_stall_rises() -> None:
    machine = Machine(2e6, 0.002)  # on a disk of this speed: what is demanded waits, what is foreseen does not
    plain, ahead = rows(_periodic(120), Plan(("lru",), (0.2,), ("none", "blend"), machine, reserve=8))
    assert (plain.hits, plain.misses) == (0, 120 * LAYERS * 2)
    assert plain.stall_s == pytest.approx(plain.misses * BYTES / 2e6)
    assert ahead.stall_s < 0.7 * plain.stall_s
