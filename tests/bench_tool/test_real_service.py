"""On a real service: what it counts adds up, engine against loader and bytes against experts; a load comes through."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtp_daemon.bench.cli import main
from mtp_daemon.bench.recorded import Step, read_recorded
from mtp_daemon.bench.serving import Service, serving
from mtp_daemon.bench.spec_runs import Measured, Plan, calibrated, measure
from mtp_daemon.bench.spec_summary import Run, summary
from mtp_daemon.bench.steps import Steps
from mtp_loader.store import open_source
from mtp_loader.store.resolve import resolve_model

TOKENS = 12
EXPERT_BYTES = open_source(resolve_model("demo"), widen=False).geometry.banks[0].source_bytes


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("routing") / "recording"


@pytest.fixture(scope="module")
def demo(recording: Path) -> Iterator[Service]:
    deepest = ("--depth-controller", "constant", "--max-depth", "3")
    with serving("demo", "--pool", "25%", *deepest, "--record-routing", str(recording)) as service:
        yield service


@pytest.fixture(scope="module")
def measured(demo: Service) -> Measured:
    return measure(Plan(list(range(1, 9)), TOKENS, "chain", [0, 2], repeats=1), demo, Steps(4))


@pytest.fixture(params=[0, 2])
def run(request: pytest.FixtureRequest, measured: Measured) -> Run:
    return measured.runs[request.param][0]


def test_bytes_are_experts_times_their_size_on_both_sides(run: Run) -> None:
    stats = run.served.stats
    assert stats["misses"] > 0
    assert stats["bytes_read"] % EXPERT_BYTES == 0
    assert stats["bytes_read"] <= (stats["misses"] + stats["prefetched"]) * EXPERT_BYTES
    assert stats["bytes_read"] == pytest.approx(run.loader["bytes_read"], rel=0.1), "but for reads ahead under way"
    assert stats["prefetched_bytes"] == stats["prefetched"] * EXPERT_BYTES
    assert run.loader["bytes_read"] == run.loader["experts_read"] * EXPERT_BYTES
    assert 0 < stats["decode_bytes_read"] < stats["bytes_read"]


def test_hits_and_misses_are_the_distinct_experts_of_all_layers(run: Run) -> None:
    stats = run.served.stats
    unions = sum(int(size) * n for sizes in stats["unions"].values() for size, n in sizes.items())
    assert unions == stats["hits"] + stats["misses"]


def test_the_loader_reads_what_the_engine_missed_and_what_it_read_ahead(run: Run) -> None:
    assert run.loader["experts_read"] >= run.served.stats["misses"]
    assert run.loader["prefetched_in_time"] <= run.loader["prefetches"]


def test_tokens_are_the_rounds_times_their_lengths(run: Run) -> None:
    stats = run.served.stats
    assert len(run.served.ids) == TOKENS
    assert sum(int(length) * n for length, n in stats["accepted_lengths"].items()) == stats["committed"]


def test_speculation_writes_the_same_tokens_and_one_altered_is_found(measured: Measured) -> None:
    plain, drafted = measured.runs[0], measured.runs[2]
    judge = plain[0].served.ids
    assert summary(2, drafted, plain, judge)["exact_match"]
    altered = [judge[0] + 1, *judge[1:]]
    found = summary(2, drafted, plain, altered)
    assert (found["exact_match"], found["mismatches"]) == (False, 1)


def test_memory_is_taken_apart_into_what_each_part_holds(measured: Measured) -> None:
    parts, processes = measured.memory["parts"], measured.memory["processes"]
    assert set(processes) == {"front", "engine", "loader"}
    assert max(processes.values()) < measured.memory["sum"] <= sum(processes.values())
    assert processes["engine"] > parts["dense weights"] > parts["MTP head"] > 0
    assert parts["pool"] == pytest.approx(0.25 * 1.0 * _all_experts(), rel=0.05)


def _all_experts() -> int:
    return open_source(resolve_model("demo"), widen=False).geometry.expert_bytes


def test_the_hottest_experts_of_an_answer_are_pinned(demo: Service, recording: Path) -> None:
    hottest = calibrated(demo, recording, [1, 2, 3], 8, count=5)
    uses = Counter(pair for step in read_recorded(recording).steps for pair in _pairs(step))
    assert len(hottest) == 5 and min(uses[pair] for pair in hottest) >= sorted(uses.values())[-5]
    assert demo.client.pin(hottest)["pinned"] == 5
    assert demo.client.pin(())["pinned"] == 0


def _pairs(step: Step) -> list[tuple[int, int]]:
    return [(layer, expert) for layer, chosen in step.items() for expert in chosen]


def test_a_load_on_a_real_service(
    demo: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtp_daemon.bench.commands.serve._IDLE_S", 0.05)
    few = ["--requests", "4", "--clients", "2", "--rate", "100", "--tokens", "4", "--prompt-tokens", "3", "5"]
    place = ["--run-dir", str(demo.run_directory)]
    assert main(["serve", *place, *few, "--json", "--picture", str(tmp_path / "p.svg")]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert (found["outcomes"], found["tokens"]) == ({"length": 4}, 16)
    assert 0 < found["emit_to_receive_s"]["p50"] < found["ttft_s"]["p50"]
    assert found["front"]["share_of_core"] > 0


def test_what_is_open_when_time_is_up_is_cancelled_and_said_to_be_cut(
    demo: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtp_daemon.bench.commands.serve._IDLE_S", 0.05)
    long = ["--requests", "2", "--rate", "100", "--tokens", "600", "--prompt-tokens", "3", "--limit-s", "0.3"]
    monkeypatch.setattr(Service, "answer", lambda *_: None)  # no warm-up over so long an answer
    assert main(["serve", "--run-dir", str(demo.run_directory), *long, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["outcomes"] == {"cut": 2}
    assert demo.client.status()["queue"]["waiting"] == 0
