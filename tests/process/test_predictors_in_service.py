"""Predictors plugged into the running service: the truth, its opposite, an exception; with and without drafts.

The plug is Python's own: a `sitecustomize` on the path of the service's processes (`support/*_predictor`), which puts
another predictor in the place of the loader's, or other guesses in the engine's. The product knows nothing of it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mtp_client.client import Client
from mtp_daemon.bench.resident import reference_answer
from mtp_loader.replay.recording import read_recording
from mtp_loader.replay.trace import PROMPT as PROMPT_PHASE
from mtp_loader.store import open_source
from mtp_loader.store.resolve import resolve_model
from mtp_protocol.client_messages import Finished, Tokens
from support.served_model import ServedModel
from support.waiting import until

SUPPORT = Path(__file__).resolve().parents[1] / "support"
PROMPT, TOKENS = tuple(range(5, 25)), 24
DEMO = resolve_model("demo")
SETTINGS = {"pool": "25%", "delay_ms": "2", "depth_controller": "constant", "warm_start": "false"}
PLUGS = {"oracle": "oracle_predictor", "lying": "lying_hints", "throwing": "throwing_predictor"}


@dataclass(frozen=True)
class Asked:
    """What one answer was, what the service told of it afterwards, and what its loader logged."""

    ids: list[int]
    stats: dict[str, Any]
    experts: dict[str, Any]
    restarts: int
    log: str


def ask(client: Client, depth: int) -> tuple[list[int], dict[str, Any]]:
    ids: list[int] = []
    for event in client.generate(prompt_ids=PROMPT, max_tokens=TOKENS, raw=True, depth=depth):
        if isinstance(event, Tokens):
            ids += event.ids
        elif isinstance(event, Finished):
            return ids, dict(event.stats)
    raise AssertionError("the answer ended without a word")


def served(depth: int, plug: str | None = None, recording: Path | None = None, **settings: str) -> Asked:
    """A fresh service's first answer, and its account once the loader has heard of all of it and nothing is read."""
    variables = {"PYTHONPATH": str(SUPPORT / plug)} if plug else {}
    if recording is not None:
        variables["MTPD_ORACLE"] = str(recording)
    with ServedModel(DEMO, variables=variables, **{**SETTINGS, **settings}).wait_ready() as front:
        with front.client() as client:
            ids, stats = ask(client, depth)
        asked = stats["hits"] + stats["misses"]

        def settled() -> dict[str, Any] | None:
            told = dict(front.status()["experts"])
            return told if told["hits"] + told["misses"] == asked and not told["filling"] else None

        experts = until("the loader has told of all", settled)
        restarts = sum(child["restarts"] for child in front.status()["children"].values())
        assert front.stop() == 0
        log = "\n".join(file.read_text(errors="replace") for file in front.run_dir.rglob("*.log"))
        return Asked(ids, stats, experts, restarts, log + front.errors())


@pytest.fixture(scope="module")
def reference() -> list[int]:
    """mlx-lm's own tokens, everything resident."""
    return reference_answer(DEMO, list(PROMPT), TOKENS).ids


@pytest.fixture(scope="module", params=[0, 2], ids=["plain", "drafts"])
def depth(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def without(depth: int, tmp_path_factory: pytest.TempPathFactory) -> tuple[Asked, Path]:
    """Nothing is read ahead, and the routing is recorded: what the oracle knows."""
    recording = tmp_path_factory.mktemp("routing") / "recording"
    return served(depth, prefetch="false", record_routing=str(recording)), recording


def books_hold(asked: Asked) -> None:
    """The loader checks its own books exactly, slot by slot and byte by byte, in each idle second, and ends if they
    are wrong; so it must not have ended. What it tells must add up as well.
    """
    told, size = asked.experts, open_source(DEMO, widen=False).geometry.banks[0].source_bytes
    assert asked.restarts == 0 and "LoaderBug" not in asked.log
    assert told["hits"] + told["misses"] == asked.stats["hits"] + asked.stats["misses"] == told["requests"]
    assert told["bytes_read"] == told["experts_read"] * size
    assert told["pinned"] == 0
    assert told["resident"] + told["filling"] + told["recalled"] + told["free"] == told["slots"]
    # A demand that found its read begun is a miss of the engine's and no second read; a read taken back is none.
    assert told["misses"] - told["prefetches"] <= told["experts_read"] <= told["misses"] + told["prefetches"]


def beyond_prediction(recording: Path) -> int:
    """Experts asked for by the prompt, which is not predicted, and by the head, whose forwards are not announced."""
    head = {y.layer for y in open_source(DEMO, widen=False).geometry.layers if y.is_head}
    forwards = read_recording(recording).forwards
    return sum(len(e.keys) for f in forwards for e in f.events if f.phase == PROMPT_PHASE or e.layer in head)


def test_nothing_read_ahead_is_bytes_of_misses_and_nothing_else(
    without: tuple[Asked, Path], reference: list[int]
) -> None:
    asked, _ = without
    assert asked.ids == reference
    books_hold(asked)
    assert asked.experts["prefetches"] == 0 and asked.experts["experts_read"] == asked.experts["misses"]


def test_the_truth_covers_nearly_all_that_can_be_foreseen(
    depth: int, without: tuple[Asked, Path], reference: list[int]
) -> None:
    """Of the answer's misses that are predicted at all the oracle names all: a count, which no clock moves. Most are
    read in time, and waiting goes with them: how many depends on what else the machine does, so those bounds are wide,
    and far from what is read ahead without the oracle. The answer is too short for a trial of not reading ahead.
    """
    plain, recording = without
    asked = served(depth, PLUGS["oracle"], recording)
    assert asked.ids == reference
    books_hold(asked)
    told = asked.experts["prediction"]["attribution"]
    foreseeable = told["useful"] + told["misses"] - beyond_prediction(recording)
    assert told["useful"] + told["late"] >= 0.95 * foreseeable > 200
    assert told["useful"] + told["late_reads"] >= 0.5 * foreseeable
    assert told["useful"] > 0.25 * foreseeable and told["wasted_per_useful"] < 0.1
    assert plain.stats["decode_stall_s"] > 1.1 * asked.stats["decode_stall_s"]


def test_the_default_predictor_leaves_fewer_experts_to_wait_for(
    depth: int, without: tuple[Asked, Path], reference: list[int]
) -> None:
    """Switched off, it is missed: more experts are waited for."""
    plain, _ = without
    asked = served(depth)
    assert asked.ids == reference
    books_hold(asked)
    told = asked.experts["prediction"]["attribution"]
    assert told["useful"] > 0.1 * plain.stats["misses"]
    assert asked.stats["misses"] < 0.95 * plain.stats["misses"]


def test_lies_are_not_read(depth: int, without: tuple[Asked, Path], reference: list[int]) -> None:
    """Experts that the gates like least, with full confidence: the same misses as without, and the same tokens."""
    plain, _ = without
    asked = served(depth, PLUGS["lying"])
    assert asked.ids == reference
    books_hold(asked)
    assert asked.experts["prediction"]["attribution"]["wasted"] < 0.05 * plain.stats["misses"]
    assert asked.stats["misses"] <= 1.05 * plain.stats["misses"]


def test_one_that_throws_is_switched_off_and_says_so(depth: int, reference: list[int]) -> None:
    """In status and in the log; the answer is whole, by the loader that began it."""
    asked = served(depth, PLUGS["throwing"])
    assert asked.ids == reference
    books_hold(asked)
    assert asked.experts["statistics"].startswith("given up after an error")
    assert "prediction" not in asked.experts
    assert "nothing is read ahead any more" in asked.log and "ValueError: thrown on purpose" in asked.log
