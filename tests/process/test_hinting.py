"""A loader tells its engine when reading ahead is tried and when it is left off: guesses cost the engine compute."""

from pathlib import Path

from mtp_protocol.expert_messages import Hinting, Used
from support.checkpoints import make_checkpoint
from support.loader_process import ScriptedEngine, scripted_front

LAYERS = 3


def decode(engine: ScriptedEngine, steps: range) -> None:
    for step in steps:
        routing = tuple((layer, ((0, 1),), ((0.5, 0.5),)) for layer in range(LAYERS))
        engine.send(Used(step, 1, (1,), routing, 2 * LAYERS, 0))


def test_the_engine_is_told_when_the_other_way_is_tried(tmp_path: Path) -> None:
    """After its first two dozen forwards with reading ahead a loader looks how they go without; a welcome begins anew.

    Only a change is told: an engine that hears nothing guesses.
    """
    model = make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64")
    with scripted_front(tmp_path, model, prefetch=True) as front:
        address = front.start(12)
        engine = ScriptedEngine(front, address)
        engine.greet()
        decode(engine, range(20))
        engine.fetch(0, (0, 1))  # answered: the loader has heard it all
        assert not engine.socket.poll(0)
        decode(engine, range(20, 26))
        assert engine.await_message(Hinting) == Hinting(False)
        engine.die()
        successor = ScriptedEngine(front, address, epoch=2)
        successor.greet()
        decode(successor, range(2))
        assert successor.await_message(Hinting) == Hinting(False)
