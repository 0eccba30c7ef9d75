"""The loader says whether guesses are of use; the engine sends them, and its tokens, only then."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.stream import DECODE, ExpertStream, StreamSettings
from mtp_protocol.expert_messages import Hinting
from support.checkpoints import make_checkpoint
from support.decoding import decoder, prompt_of, run
from support.waiting import until

AHEAD = StreamSettings(hints_ahead=2)


def hinting_becomes(served: Any, wanted: bool) -> None:
    served.loader.say(Hinting(wanted))
    stream: ExpertStream = served.stream

    def heard() -> bool:
        stream.link.poll()
        return stream.link.hinting == wanted

    until("the engine hears", heard)


def decode(served: Any, tokens: int) -> None:
    decoding = decoder(Target(served.loaded.trunk, served.stream), prompt_of(6), depth=0)
    run(decoding, tokens)
    decoding.close()
    served.stream.report()
    until("the loader hears of all", lambda: len(served.loader.used) == served.stream.stats.forwards)


def test_a_decode_forward_is_announced_with_its_own_step_and_tokens(tmp_path: Path, serve: Callable[..., Any]) -> None:
    """Under another step its hints would be taken for another forward's, under other tokens for another token's."""
    served = serve(make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64"), 0.25, settings=AHEAD)
    decode(served, 6)
    announced = {fed.step: fed.tokens for fed in served.loader.fed}
    assert announced == {used.step: used.tokens for used in served.loader.used if used.phase == DECODE}


def test_a_loader_without_use_for_guesses_gets_none(tmp_path: Path, serve: Callable[..., Any]) -> None:
    """Each costs a norm and a gate a layer: a quarter of a small model's token, for nothing."""
    served = serve(make_checkpoint(tmp_path / "m", "qwen3_moe", quant="q4g64"), 0.25, settings=AHEAD)
    decode(served, 6)
    before = len(served.loader.hints), len(served.loader.fed)
    assert all(before), "unless it says so"
    hinting_becomes(served, False)
    decode(served, 6)
    assert (len(served.loader.hints), len(served.loader.fed)) == before
    hinting_becomes(served, True)
    decode(served, 6)
    assert len(served.loader.hints) > before[0] and len(served.loader.fed) > before[1]
