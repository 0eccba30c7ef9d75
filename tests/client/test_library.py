"""The library: events in order, several answers at once, leaving early."""

from collections.abc import Iterator

import pytest

from mtp_client import Client, ConnectionLost, NotRunning
from mtp_client import connection as connection_module
from mtp_client.errors import RequestRefused
from mtp_client.stats import stats_block
from mtp_daemon.commands.status import describe
from mtp_protocol.client_messages import Accepted, Finished, Tokens, Usage
from support.fake_children import answer
from support.front_process import FrontProcess
from support.waiting import until


@pytest.fixture(scope="module")
def front() -> Iterator[FrontProcess]:
    with FrontProcess({"engine": [{"token_every_s": 0.002}]}).wait_ready() as front:
        yield front


def ids_of(events: Iterator[object]) -> list[int]:
    return [i for e in events if isinstance(e, Tokens) for i in e.ids]


def test_generate(front: FrontProcess) -> None:
    """The one-liner of the documentation."""
    events = list(Client(front.run_dir).generate("hello", max_tokens=4))
    assert isinstance(events[0], Accepted) and isinstance(events[-1], Finished)
    assert ids_of(iter(events)) == answer("hello", 4)


def test_who_is_turned_away_is_counted_and_nowhere_else(front: FrontProcess) -> None:
    """A refusal by the front never reached an engine: the ends of accepted requests still add up."""
    client = Client(front.run_dir)
    before = client.status()["requests"]
    for _ in range(2):
        with pytest.raises(RequestRefused):
            list(client.generate("hello", max_tokens=10**9))
    after = client.status()["requests"]
    assert after == before | {"turned_away": before["turned_away"] + 2}
    assert f"{after['turned_away']} turned away" in describe(client.status())


def test_prompt_ids(front: FrontProcess) -> None:
    """Token ids travel as they are."""
    with front.client() as client:
        assert ids_of(client.generate(prompt_ids=(1, 2, 3), max_tokens=4)) == answer("[1, 2, 3]", 4)


def test_two_answers_interleaved(front: FrontProcess) -> None:
    """Two requests of one client, read in turns and out of order; each is its own, none loses events."""
    with front.client() as client:
        first, second = client.generate("one", max_tokens=40), client.generate("two", max_tokens=40)
        next(first)
        assert ids_of(second) == answer("two", 40)
        assert ids_of(first) == answer("one", 40)


@pytest.mark.parametrize("how", ["close", "drop", "with"])
def test_leaving_early_cancels(front: FrontProcess, how: str) -> None:
    """An answer that is left before its end is cancelled at the service, and the client stays usable."""
    before = front.status()["requests"]["cancelled"]
    with front.client() as client:
        answered = client.generate("endless", max_tokens=8000)
        next(e for e in answered if isinstance(e, Tokens))
        if how == "close":
            answered.close()
        elif how == "with":
            with answered:
                pass
        del answered
        until("cancelled", lambda: front.status()["requests"]["cancelled"] == before + 1)
        assert ids_of(client.generate("next", max_tokens=3)) == answer("next", 3)


def test_silent_service_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that hangs (stopped) is no endless wait: after the limit of silence the client gives up."""
    monkeypatch.setattr(connection_module, "SILENCE_S", 1.0)
    with FrontProcess({"engine": [{"hang_at": "token:1"}]}).wait_ready() as front, front.client() as client:
        answered = client.generate("hello", max_tokens=4)
        next(e for e in answered if isinstance(e, Tokens))
        front.process.send_signal(19)
        with pytest.raises(ConnectionLost, match="said nothing"):
            list(answered)
        with pytest.raises(NotRunning, match="does not answer"):
            front.client()
        front.process.send_signal(18)


def test_stats_block_adds_up() -> None:
    """--stats: rates are computed from the counts shown, and division by zero is not."""
    stats = {"hits": 90, "misses": 10, "bytes_read": 2_000_000, "stall_s": 0.5, "drafted": 8, "accepted": 6,
             "rounds": 4, "accepted_by_position": [4, 2], "drafted_by_position": [4, 4], "draft_s": 0.1}  # fmt: skip
    stats |= {"total_s": 3.0, "prefill_s": 1.0, "decode_s": 2.0, "draft_s": 0.5, "a_counter_for_programs": 77}
    block = stats_block(Finished(b"", "stop", Usage(7, 10), stats))
    assert "3.00 s: 1.00 s for the prompt, 2.00 s for the answer" in block and "rounds: draft 0.50 s" in block
    assert "a_counter" not in block and "77" not in block, "names of the program's own belong to --json"
    for part in ("90.0 % hit", "2.0 MB read, 200.0 kB a token", "6 of 8 accepted (75.0 %) in 4 rounds", "100 %, 50 %"):
        assert part in block
    # 100 layers of one token: fifty needed 4, forty-nine 6, one 9; the 99th of them in order is a 6.
    unions = {"1": {"4": 50, "6": 49, "9": 1}, "512": {"60": 2}}
    block = stats_block(Finished(b"", "stop", Usage(7, 10), stats | {"unions": unions}))
    assert "1 token in a forward: 5.0 experts a layer (p50 4, p99 6, max 9)" in block
    assert "512 tokens" not in block
    empty = {"hits": 0, "misses": 0, "bytes_read": 0, "drafted": 0, "accepted": 0}
    assert "0 hits, 0 misses" in stats_block(Finished(b"", "cancelled", Usage(0, 0), empty))
