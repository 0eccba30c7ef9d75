"""The front's small parts, each against the fault it is there to prevent."""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_daemon.errors import UserError
from mtp_daemon.front.child_log import ChildLog, logs_in
from mtp_daemon.front.client_port import Outcome
from mtp_daemon.front.clients import DEAF_LIMIT_S, MAX_REPLIES, Clients
from mtp_daemon.front.clock import RunningClock
from mtp_daemon.front.fair_queue import FairQueue
from mtp_daemon.front.liveness import Restarts, Vigil
from mtp_daemon.front.token_log import BATCH_TOKENS, Run, TokenLog
from mtp_protocol import client_messages as c


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers()), max_size=30))
def test_queue_is_fair(puts: list[tuple[bytes, int]]) -> None:
    """Each client's items keep their order, no client gets two turns while another waits, `order` tells the truth."""
    queue: FairQueue[tuple[bytes, int]] = FairQueue()
    for client, number in puts:
        queue.put(client, (client, number))
    promised = queue.order()
    taken = list(iter(queue.take, None))
    assert taken == promised and len(queue) == 0
    for client in (b"a", b"b", b"c"):
        assert [t for t in taken if t[0] == client] == [p for p in puts if p[0] == client]
    turns: Counter[bytes] = Counter()
    left = Counter(client for client, _ in puts)
    for client, _ in taken:
        turns[client] += 1
        left[client] -= 1
        assert all(turns[client] <= turns[other] + 1 for other, waiting in left.items() if waiting)


def test_queue_put_back_is_next() -> None:
    """A request whose engine died is the next one again, not the last of the round."""
    queue: FairQueue[str] = FairQueue()
    for client, item in ((b"a", "a1"), (b"b", "b1"), (b"a", "a2")):
        queue.put(client, item)
    first = queue.take()
    assert first == "a1"
    queue.put_back(b"a", first)
    assert [queue.take() for _ in range(3)] == ["a1", "b1", "a2"]


@given(st.lists(st.integers(0, 300), max_size=12), st.integers(0, 4000))
def test_log_hands_out_every_token_once(sizes: list[int], position: int) -> None:
    """From any position: the run that holds it, then all after it, in batches that are bounded and gapless."""
    log = TokenLog()
    for size in sizes:
        log.append(Run(len(log), tuple(range(len(log), len(log) + size)), "x" * size))
    index = log.run_at(position)
    expected: int | None = None
    while index < log.runs:
        run, after = log.batch(index)
        assert len(run.ids) <= max(BATCH_TOKENS, 300) and after > index
        if expected is None:
            assert run.seq <= position <= run.seq + len(run.ids) or position >= len(log)
        else:
            assert run.seq == expected
        assert run.ids == tuple(range(run.seq, run.seq + len(run.ids))) and len(run.text) == len(run.ids)
        expected, index = run.seq + len(run.ids), after
    assert expected in (None, len(log))


def test_log_refuses_a_gap() -> None:
    """Tokens that do not follow the last are refused: a repeat as well as a gap."""
    log = TokenLog()
    log.append(Run(0, (1, 2), "ab"))
    for seq in (0, 1, 3):
        with pytest.raises(ValueError, match="2… were due"):
            log.append(Run(seq, (9,), "x"))


def test_clock_does_not_count_sleep() -> None:
    """An hour in which the process did not run is not an hour that anybody waited."""
    real = [10.0]
    clock = RunningClock(lambda: real[0])
    real[0] += 0.5
    assert clock.tick(0.2) == pytest.approx(0.5)
    real[0] += 3600.0
    assert clock.tick(0.2) == pytest.approx(1.7)
    assert clock.stopped_s == pytest.approx(3598.8)


def vigil() -> Vigil:
    return Vigil(start_limit_s=60.0, beat_limit_s=10.0, progress_limit_s=30.0, born=0.0)


def test_vigil_before_the_first_word() -> None:
    """Loading may take its time, but not for ever; beats count from the first one on."""
    watched = vigil()
    assert watched.verdict(59.0) is None
    assert "not a word" in (watched.verdict(61.0) or "")
    watched.word(59.0)
    assert watched.verdict(68.0) is None
    assert "no beat" in (watched.verdict(70.0) or "")


def test_vigil_busy_and_idle() -> None:
    """Idle for an hour is fine; busy without progress is not; progress and an excuse both start the time anew."""
    watched = vigil()
    for now in range(0, 3600, 5):
        watched.beat(7, False, float(now))
        assert watched.verdict(float(now)) is None
    for now in range(3600, 3630, 5):
        watched.beat(7, True, float(now))
        assert watched.verdict(float(now)) is None
    watched.beat(7, True, 3636.0)
    assert "without progress" in (watched.verdict(3636.0) or "")
    watched.excuse(3636.0)
    assert watched.verdict(3640.0) is None
    watched.beat(8, True, 3645.0)
    assert watched.verdict(3650.0) is None


def test_restarts_back_off_and_end() -> None:
    """Each wait is longer, up to a limit; after so many in a row there is an end; a minute of service begins anew."""
    restarts = Restarts(limit=4, first_s=0.1, longest_s=0.5, settled_s=60.0)
    assert [restarts.delay(0.0) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, None]
    assert restarts.delay(61.0) == 0.1
    assert restarts.total == 5


def test_time_in_service_is_no_time_to_wait_again() -> None:
    """Clients wait for the next start: the seventh death in a row, each after a few seconds of service, is no reason to
    let them wait for longer, and one right after it was ready is.
    """
    restarts = Restarts(limit=10)
    assert [restarts.delay(6.0) for _ in range(7)] == [0.1] * 7
    assert restarts.delay(1.0) == pytest.approx(4.0)


class Sender:
    """Stands for the socket: takes `room` messages, or says that the client is gone."""

    def __init__(self) -> None:
        self.room = 1_000_000
        self.gone = False
        self.heard: list[c.ToClient] = []

    def __call__(self, _client: bytes, message: c.ToClient) -> Outcome:
        if self.gone:
            return "gone"
        if self.room == 0:
            return "full"
        self.room -= 1
        self.heard.append(message)
        return "sent"


def test_full_client_keeps_its_order() -> None:
    """What a full socket did not take is sent later, in order, once."""
    sender = Sender()
    clients = Clients(sender, 10, lambda *_: None)
    clients.admit(b"a", 0.0)
    sender.room = 2
    for ref in range(5):
        clients.reply(b"a", c.Done(ref))
    assert clients.pump(0.0) is not None
    sender.room = 1
    clients.pump(0.1)
    sender.room = 100
    assert clients.pump(0.2) is None
    assert [m.ref for m in sender.heard if isinstance(m, c.Done)] == [0, 1, 2, 3, 4]


def test_unread_replies_are_bounded_and_told() -> None:
    """Past the bound one last message says so, more is not kept, and after reading all is well again."""
    sender = Sender()
    clients = Clients(sender, 10, lambda *_: None)
    clients.admit(b"a", 0.0)
    sender.room = 0
    for ref in range(10 * MAX_REPLIES):
        if clients.admit(b"a", 0.0):
            clients.reply(b"a", c.Done(ref))
    sender.room = 10_000
    clients.pump(1.0)
    assert len(sender.heard) == MAX_REPLIES + 1
    assert isinstance(sender.heard[-1], c.Failed) and sender.heard[-1].kind == "busy"
    assert clients.admit(b"a", 2.0)


def test_deaf_client_is_given_up() -> None:
    """A client that takes nothing for minutes is forgotten, though its connection stands."""
    sender = Sender()
    clients = Clients(sender, 10, lambda *_: None)
    clients.admit(b"a", 0.0)
    sender.room = 0
    clients.reply(b"a", c.Done(1))
    clients.pump(0.0)
    clients.keep_alive(DEAF_LIMIT_S - 1)
    assert len(clients) == 1
    clients.keep_alive(DEAF_LIMIT_S + 1)
    assert len(clients) == 0


def test_gone_client_is_noticed_by_alive() -> None:
    """With nothing to tell, Alive finds out within half a second that nobody is there."""
    sender = Sender()
    clients = Clients(sender, 10, lambda *_: None)
    clients.admit(b"a", 0.0)
    sender.gone = True
    clients.keep_alive(0.5)
    assert len(clients) == 0 and clients.gone_count == 1


def test_too_many_clients_are_told() -> None:
    sender = Sender()
    clients = Clients(sender, 2, lambda *_: None)
    assert clients.admit(b"a", 0.0) and clients.admit(b"b", 0.0) and not clients.admit(b"c", 0.0)
    assert isinstance(sender.heard[-1], c.Failed) and sender.heard[-1].kind == "busy"


def test_logs_that_cannot_be_kept_are_refused_at_the_start(tmp_path: Path) -> None:
    """Not a service that runs for weeks and has nothing to show when it is asked why."""
    assert logs_in(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"log_dir .*file/logs: Not a directory; choose another"):
        logs_in(tmp_path / "file" / "logs")


def test_child_log_keeps_last_words(tmp_path: Path) -> None:
    """Split and unfinished lines are put together; the last line that speaks of an error is the one shown."""
    log = ChildLog(tmp_path / "logs" / "engine.log")
    log.begin("engine 1")
    log.feed(b"loading\nTraceback\nRuntime")
    log.feed(b"Error: bo\xff")
    log.end()
    assert log.last_error == "RuntimeError: bo\ufffd"
    log.close()
    assert (tmp_path / "logs" / "engine.log").stat().st_mode & 0o077 == 0


def test_child_log_is_rotated(tmp_path: Path) -> None:
    """A child that writes without end fills three files of a megabyte, no more."""
    path = tmp_path / "engine.log"
    log = ChildLog(path)
    for _ in range(100):
        log.feed(b"x" * 99_999 + b"\n")
    log.close()
    files = list(tmp_path.iterdir())
    assert len(files) == 3 and sum(f.stat().st_size for f in files) < 4 << 20


def test_child_log_without_room(tmp_path: Path) -> None:
    """Where no file can be written the lines in memory are still kept, and nothing is raised."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    log = ChildLog(blocked / "logs" / "engine.log")
    log.feed(b"an error\n")
    assert log.last_error == "an error"
    full = ChildLog(Path("/dev/full")) if os.path.exists("/dev/full") else log
    full.feed(b"an error\n")
    assert full.last_error == "an error"
    full.close()
