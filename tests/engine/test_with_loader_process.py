"""The same bits from a real loader process: its policy, its readers, its slot table; killed and followed by another."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mtp_daemon.engine.loader_life import LoaderLife
from mtp_daemon.engine.model import Loaded, load_streamed
from mtp_daemon.engine.slot_verifier import SlotVerifier
from mtp_daemon.engine.stream import ExpertStream, StreamSettings
from mtp_loader.store.packing.pack import pack
from mtp_loader.store.packing.settings import PackSettings
from mtp_protocol.loader_messages import EngineUp
from support.checkpoints import make_checkpoint
from support.loader_process import ScriptedFront, scripted_front
from support.reference import greedy_reference, greedy_streamed, reference_logits, streamed_logits

IDS = [(7 * i * i + 3 * i) % 500 for i in range(30)]
CHUNKS = (IDS, [12], [400], [7, 8, 9], [1])


@dataclass
class Engine:
    loaded: Loaded
    stream: ExpertStream
    life: LoaderLife


@contextmanager
def engine_of(front: ScriptedFront, address: str, path: Path, hints: int) -> Iterator[Engine]:
    assert front.layout is not None
    life = LoaderLife()
    settings = StreamSettings(hints_ahead=hints, verify_slots=True)
    verifier = SlotVerifier(front.fd, front.layout, front.source)
    stream = ExpertStream(front.context, life, 1, front.source.geometry, front.layout, front.fd, settings, verifier)
    front.send(EngineUp(1, os.getpid()))
    life.loader_up(front.epoch, address)
    try:
        yield Engine(load_streamed(path, stream), stream, life)
    finally:
        stream.close()
        life.close()


@pytest.mark.parametrize(
    ("family", "packed", "slots", "hints"),
    [("qwen3_next", True, 2, 0), ("gpt_oss", False, 9, 2), ("deepseek_v3", True, 7, 0), ("qwen3_moe", False, 24, 1)],
)
def test_tokens_and_logits_through_the_loader_process(
    family: str, packed: bool, slots: int, hints: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = make_checkpoint(tmp_path / "m", family, quant="q4g64")
    served = path
    if packed:
        served = tmp_path / "packed"
        pack(path, served, PackSettings(scales="keep"), lambda line: None)
    with scripted_front(tmp_path_factory.mktemp("s"), served, widen=True) as front:
        address = front.start(slots)
        with engine_of(front, address, served, hints) as engine:
            engine.stream.join()
            for want, got in zip(reference_logits(path, CHUNKS), streamed_logits(engine, CHUNKS), strict=True):
                np.testing.assert_array_equal(got, want)
            assert greedy_streamed(engine, IDS, 12) == greedy_reference(path, IDS, 12)
            stats = engine.stream.stats
            assert stats.slots_verified > 50 and stats.misses > 0
            assert stats.retries == stats.stale_messages == stats.bad_messages == 0


def test_kill_9_of_the_loader_process_in_the_middle_of_an_answer(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Killed again and again while decode runs; each time the next one takes over: the same tokens."""
    path = make_checkpoint(tmp_path / "m", "qwen3_next", quant="q4g64")
    want = greedy_reference(path, IDS, 60)
    with scripted_front(tmp_path_factory.mktemp("s"), path, widen=True) as front:
        address = front.start(6)
        with engine_of(front, address, path, 0) as engine:
            engine.stream.join()
            done = threading.Event()

            def kill_and_replace() -> None:
                demands = 10
                while not done.is_set():
                    if engine.stream.stats.demands < demands:
                        time.sleep(0.001)
                        continue
                    front.kill()
                    engine.life.loader_dead(front.epoch)
                    address = front.start(6)
                    front.send(EngineUp(1, os.getpid()))
                    engine.life.loader_up(front.epoch, address)
                    demands += 60
                    if front.epoch == 4:
                        done.wait(60)  # a loader dies with the thread that spawned it
                        return

            killer = threading.Thread(target=kill_and_replace)
            killer.start()
            try:
                got = greedy_streamed(engine, IDS, 60)
            finally:
                done.set()
                killer.join(60)
            assert got == want
            assert engine.stream.stats.rejoins >= 3


def test_an_engine_that_comes_back_starts_warm(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Welcome lists what is resident: the second engine misses nothing that the first one had."""
    path = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    with scripted_front(tmp_path_factory.mktemp("s"), path, widen=True) as front:
        address = front.start(24)
        with engine_of(front, address, path, 0) as first:
            first.stream.join()
            want = streamed_logits(first, CHUNKS)
            assert first.stream.stats.misses
        with engine_of(front, address, path, 0) as second:
            second.stream.join()
            for a, b in zip(want, streamed_logits(second, CHUNKS), strict=True):
                np.testing.assert_array_equal(a, b)
            assert second.stream.stats.misses == 0
