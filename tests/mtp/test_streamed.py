"""Speculation on streamed experts: the head's stream through the same pool, at any pool size, and tokens stay REF's."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from mlx_lm.utils import load_model

from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.errors import ExpertUnreadable
from mtp_daemon.engine.loader_life import LoaderLife
from mtp_daemon.engine.model import load_streamed
from mtp_daemon.engine.mtp.load import load_head
from mtp_daemon.engine.stream import ExpertStream, ResidentStream
from mtp_daemon.engine.trunk import Trunk
from mtp_loader.store.open import open_source
from support.checkpoints import Head, make_checkpoint
from support.decoding import Scripted, decoder, prompt_of, reference, right_then_wrong, run
from support.inline_loader import InlineLoader
from support.pool_shapes import layout_for, new_region, share_of
from support.waiting import until

HEAD_LAYER = 4


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("streamed")
    return {
        family: make_checkpoint(directory / family, family, quant="q4g32", head=Head("inside", "per_expert"), seed=3)
        for family in ("qwen3_next", "qwen3_5_moe")
    }


@contextmanager
def served(path: Path, share: float) -> Iterator[tuple[Target, InlineLoader]]:
    source = open_source(path, widen=True)
    layout = layout_for(source.geometry, share_of(source.geometry, share))
    fd, context, life = new_region(layout), zmq.Context(), LoaderLife()
    with tempfile.TemporaryDirectory(prefix="mtpd-") as sockets:
        loader = InlineLoader(source, layout, fd, Path(sockets), context)
        life.loader_up(loader.epoch, loader.address)
        stream = ExpertStream(context, life, 1, source.geometry, layout, fd)
        try:
            stream.join()
            loaded = load_streamed(path, stream)
            head = load_head(loaded.model, stream, path)
            assert head.head is not None, head.why
            yield Target(loaded.trunk, stream, head.head, head.why), loader
            stream.close()
            assert loader.errors == []
        finally:
            loader.kill()
            stream.link.leave()
            context.destroy(0)
            life.close()
            os.close(fd)


def _resident(path: Path) -> Target:
    model, _ = load_model(path, strict=False)
    return Target(Trunk(model), ResidentStream())


def test_the_head_of_another_kind_gets_its_own_bank(tmp_path: Path) -> None:
    """Bf16 experts of the head beside a 4-bit trunk's: both stream, tokens are the trunk's own."""
    path = make_checkpoint(tmp_path / "m", "qwen3_next", quant="q4g32", head=Head(quant="bf16"))
    prompt = prompt_of(7)
    with served(path, 0.0) as (on, _):
        assert run(decoder(on, prompt, depth=2), 8) == reference(_resident(path), prompt, 8)


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
@pytest.mark.parametrize("way", ["chain", "adaptive", "rescue", "tree", "adaptive+rescue"])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_every_way_at_every_pool_size(family: str, way: str, share: float, checkpoints: dict[str, Path]) -> None:
    """Pool minimum, quarter and all; a draft's experts and the verify's waves never change a token."""
    path, prompt = checkpoints[family], prompt_of(9)
    expected = reference(_resident(path), prompt, 10)
    with served(path, share) as (on, loader):
        decoding = decoder(on, prompt, speculation=way, depth=3, tau=0.004, chunk=4)
        assert run(decoding, 10) == expected
        assert decoding.stats()["drafted"] > 0
        assert any(layer == HEAD_LAYER for layer, _ in loader.reads)


@pytest.mark.parametrize("way", ["chain", "rescue", "tree"])
def test_scripted_drafts_in_the_smallest_pool(way: str, checkpoints: dict[str, Path]) -> None:
    """Accepted drafts in a pool that holds one token's experts of one layer: a verify of 4 works in waves."""
    path, prompt = checkpoints["qwen3_next"], prompt_of(9)
    answer = reference(_resident(path), prompt, 12)
    with served(path, 0.0) as (on, _):
        drafter = Scripted(answer, len(prompt), right_then_wrong(2), way)
        assert run(decoder(on, prompt, drafter=drafter, depth=4), 12) == answer
        assert on.stream.stats.waves > 0


def test_priming_reads_no_expert_of_the_head(checkpoints: dict[str, Path]) -> None:
    """The prompt's rows enter the head's cache without one expert of it being read."""
    with served(checkpoints["qwen3_next"], 1.0) as (on, loader):
        decoding = decoder(on, prompt_of(40), depth=2, chunk=8)
        on.stream.settle()
        assert not [layer for layer, _ in loader.reads if layer == HEAD_LAYER]
        decoding.round(3)
        assert [layer for layer, _ in loader.reads if layer == HEAD_LAYER]


def test_one_host_read_a_layer_and_one_a_draft_step(checkpoints: dict[str, Path]) -> None:
    """A verify reads the host as often as a plain forward, once a MoE layer; a draft step once, for its router.

    The tokens and confidences of the step before come with it.
    """
    with served(checkpoints["qwen3_next"], 0.0) as (on, _):
        decoding = decoder(on, prompt_of(9), depth=3)
        state = decoding._state
        before = on.stream.stats.host_reads
        decoding._rounds.run(0)
        plain = on.stream.stats.host_reads - before
        assert plain == len(on.trunk.layers)
        before = on.stream.stats.host_reads
        decoding._rounds.run(3)
        assert on.stream.stats.host_reads - before == 3 + plain
        assert state.head is not None


def test_an_unsure_step_asks_for_no_expert(checkpoints: dict[str, Path]) -> None:
    """`adaptive` learns with the next step's read that the token before should not be there: that step ends before
    its experts are asked for, so it costs no disk. The pool is so small that every step that runs must ask.
    """
    with served(checkpoints["qwen3_next"], 0.0) as (on, loader):
        decoding = decoder(on, prompt_of(9), speculation="adaptive", depth=4, tau=1.0)
        for _ in range(6):
            decoding.round(5)
        on.stream.settle()
        assert decoding.stats()["drafted"] == 0
        assert len([n for n in loader.needs if n.layer == HEAD_LAYER]) == 6


def test_an_unreadable_expert_fails_the_round_and_no_more(checkpoints: dict[str, Path]) -> None:
    """In the head or in the trunk: the round is taken back and, once the file is whole, asked for again."""
    path, prompt = checkpoints["qwen3_next"], prompt_of(9)
    expected = reference(_resident(path), prompt, 12)
    for layer in (HEAD_LAYER, 2):
        with served(path, 0.0) as (on, loader):
            decoding = decoder(on, prompt, depth=3)
            ids = list(decoding.round(2).ids)
            loader.fail = {(layer, expert) for expert in range(8)}
            with pytest.raises(ExpertUnreadable):
                for _ in range(3):
                    ids += decoding.round(4).ids
            loader.fail = set()
            on.stream.settle()
            while len(ids) < 12:
                ids += decoding.round(12 - len(ids)).ids
            assert ids == expected


def verifies(loader: InlineLoader) -> list[tuple[int, ...]]:
    return [used.tokens for used in loader.used if used.phase == 1 and len(used.tokens) == 3]


def test_used_names_the_tokens_that_were_drafted(checkpoints: dict[str, Path]) -> None:
    """The predictor learns from (token, experts): tokens unread when the forward began are reported as they came."""
    with served(checkpoints["qwen3_next"], 0.5) as (on, loader):
        decoding = decoder(on, prompt_of(9), depth=2)
        kept: list[Any] = []
        plain = decoding._rounds._drafter.draft

        def keeping(source: Any, depth: int) -> Any:
            kept.append((source.history[-1], plain(source, depth)))
            return kept[-1][1]

        decoding._rounds._drafter.draft = keeping  # type: ignore[method-assign]
        for _ in range(4):
            decoding.round(3)
        # A forward is reported while the next one runs.
        want = [(last, *drafted.paths()[0].tokens) for last, drafted in kept[:3]]
        until("the loader hears of the first three verifies", lambda: len(verifies(loader)) >= 3)
        assert verifies(loader)[:3] == want
