"""The Prometheus endpoint: what it says is what happened, and who asks badly harms nobody."""

import re
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mtp_daemon.errors import UserError
from mtp_daemon.front.metrics import Snapshot, render
from mtp_daemon.front.metrics_port import MetricsPort, parse_place
from mtp_daemon.front.totals import SUMMED, Totals
from mtp_protocol import engine_messages as e
from mtp_protocol.client_messages import Finished, Usage
from support.checkpoints import Head, make_checkpoint
from support.fake_children import answer
from support.front_process import FrontProcess
from support.served_model import ServedModel
from support.waiting import until

Metrics = dict[str, float]

_HELP = re.compile(r"# HELP ([a-z0-9_]+) \S.*")
_TYPE = re.compile(r"# TYPE ([a-z0-9_]+) (counter|gauge)")
_SAMPLE = re.compile(r'([a-z0-9_]+)(\{[a-z]+="[a-z0-9_]+"(?:,[a-z]+="[a-z0-9_]+")*\})? (-?[0-9.e+-]+)')


def fetch(at: str, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") -> tuple[int, dict[str, str], str]:
    """Status, headers and body."""
    unix = at.startswith("unix:")
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_STREAM) as asker:
        asker.settimeout(20)
        host, _, port = at.rpartition(":")
        asker.connect(at.removeprefix("unix:") if unix else (host, int(port)))
        asker.sendall(request)
        said = b""
        while data := asker.recv(65536):
            said += data
    head, _, body = said.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


def parse(text: str) -> Metrics:
    """A strict reader of the format: each metric has HELP, TYPE and samples, once and in that order."""
    metrics: Metrics = {}
    named: set[str] = set()
    current = kind = ""
    for line in text.splitlines():
        if match := _HELP.fullmatch(line):
            current, kind = match[1], ""
            assert current not in named, f"{current} comes twice"
            named.add(current)
        elif match := _TYPE.fullmatch(line):
            assert match[1] == current and not kind
            kind = match[2]
            assert (kind == "counter") == current.endswith("_total")
        else:
            match = _SAMPLE.fullmatch(line)
            assert match is not None and match[1] == current and kind, line
            assert match[1] + (match[2] or "") not in metrics
            metrics[match[1] + (match[2] or "")] = float(match[3])
    return metrics


def metrics_of(at: str) -> Metrics:
    status, headers, body = fetch(at)
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert int(headers["Content-Length"]) == len(body.encode())
    return parse(body)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FrontProcess, str]]:
    home = tmp_path_factory.mktemp("metrics")
    model = make_checkpoint(home / "tiny", "qwen3_next", head=Head())
    at = f"unix:{home / 'm.sock'}"
    with ServedModel(model, pool="25%", metrics=at).wait_ready() as front:
        yield front, at


def test_numbers_are_the_answers_own(served: tuple[FrontProcess, str]) -> None:
    """What three answers say of themselves, added up, is what the endpoint says; nothing is lost or counted twice."""
    front, at = served
    stats, tokens = [], 0
    with front.client() as client:
        for depth in (0, 2, 3):
            finished = list(client.generate(prompt_ids=tuple(range(3, 40)), max_tokens=20, depth=depth))[-1]
            assert isinstance(finished, Finished)
            stats.append(finished.stats)
            tokens += finished.usage.completion_tokens
    until("all is told", lambda: metrics_of(at)["mtpd_tokens_total"] == tokens, 10.0)
    metrics = until(
        "all is counted", lambda: (m := metrics_of(at))['mtpd_requests_total{outcome="finished"}'] == 3 and m
    )
    names = {
        "hits": "expert_hits", "misses": "expert_misses", "bytes_read": "expert_bytes_read", "rounds": "rounds",
        "drafted": "drafted_tokens", "accepted": "accepted_tokens", "stall_s": "stall_seconds",
    }  # fmt: skip
    for name, metric in names.items():
        own = sum(s.get(name, 0) for s in stats)
        assert metrics[f"mtpd_{metric}_total"] == pytest.approx(own, rel=1e-9), name
        # A random head guesses nothing right.
        assert own > 0 or name == "accepted", f"no answer had any {name}: this proves nothing"
    assert metrics["mtpd_prompt_tokens_total"] == 3 * 37
    needed = sum(value for name, value in metrics.items() if name.startswith("mtpd_forward_experts_total"))
    assert needed == sum(s["hits"] + s["misses"] for s in stats), "each expert needed is in one layer's union"
    status = front.status()
    assert metrics["mtpd_pool_slots"] == sum(status["pool"]["slots"])
    assert metrics["mtpd_pool_bytes"] == status["pool"]["bytes"]
    for role in ("front", "loader", "engine"):
        assert metrics[f'mtpd_resident_memory_bytes{{process="{role}"}}'] > 10 << 20


def test_every_sum_is_told() -> None:
    """Each summed statistic under its own name, whole numbers in full, absent ones left out."""
    totals = Totals()
    stats = {name: 10**i + 1 for i, name in enumerate(SUMMED)}
    for _ in range(2):
        totals.hear(e.Tokens(b"r", 0, (1, 2, 3), ""))
        totals.hear(e.Finished(b"r", "stop", Usage(7, 3), {**stats, "odd": "text", "stall_s": 0.25}))
    status = {
        "running_s": 1.0, "phase": "serving", "bad_messages": 0, "pool": None, "experts": {"bytes_read": 2**60},
        "queue": {"waiting": 0, "running": None, "clients": 1}, "children": {},
        "requests": {"accepted": 2, "finished": 2, "cancelled": 0, "refused": 0, "failed": 0, "turned_away": 1},
    }  # fmt: skip
    metrics = parse(render(Snapshot(status, totals.tokens, totals.prompt_tokens, totals.sums)))
    assert metrics["mtpd_requests_turned_away_total"] == 1
    assert metrics["mtpd_tokens_total"] == 6 and metrics["mtpd_prompt_tokens_total"] == 14
    assert metrics["mtpd_accepted_tokens_total"] == 2 * stats["accepted"]
    assert metrics["mtpd_stall_seconds_total"] == 0.5 and metrics["mtpd_loader_bytes_read_total"] == 2**60
    assert (
        len({metrics[f"mtpd_{n}_total"] for n in ("drafted_tokens", "accepted_tokens", "expert_hits", "rounds")}) == 4
    )
    assert "mtpd_pool_slots" not in metrics and "mtpd_child_ready" not in metrics


def test_misses_by_cause_recall_and_unions_counted_by_hand() -> None:
    """Two answers: of forwards over one token, 3 + 1 layers that needed 4 experts each; a chunk of 40 is `more`."""
    totals = Totals()
    for unions in ({"1": {"4": 3}, "2": {"6": 1, "8": 3}}, {"1": {"4": 1}, "40": {"9": 2}, "17": {"5": 1}}):
        totals.hear(e.Finished(b"r", "stop", Usage(7, 3), {"unions": unions}))
    experts = {
        "never_predicted": 5, "predicted_late": 3, "evicted_again": 2,
        "prediction": {"recall": {"hint1": {"at_k": 0.75, "at_2k": 0.875, "wanted": 40}}},
    }  # fmt: skip
    status = {
        "running_s": 1.0, "phase": "serving", "bad_messages": 0, "pool": None, "experts": experts,
        "queue": {"waiting": 0, "running": None, "clients": 1}, "children": {},
        "requests": {"accepted": 2, "finished": 2, "cancelled": 0, "refused": 0, "failed": 0, "turned_away": 1},
    }  # fmt: skip
    metrics = parse(render(Snapshot(status, unions=totals.unions)))
    causes = {"never_predicted": 5, "late": 3, "evicted_again": 2}
    assert {c: metrics[f'mtpd_loader_misses_total{{cause="{c}"}}'] for c in causes} == causes
    assert metrics['mtpd_prediction_recall_at_k{source="hint1"}'] == 0.75
    assert metrics['mtpd_prediction_recall_at_2k{source="hint1"}'] == 0.875
    counted = {"1": (4, 16), "2": (4, 30), "more": (3, 23)}
    for tokens, (layers, needed) in counted.items():
        assert metrics[f'mtpd_forward_layers_total{{tokens="{tokens}"}}'] == layers
        assert metrics[f'mtpd_forward_experts_total{{tokens="{tokens}"}}'] == needed
    assert sum(name.startswith("mtpd_forward_layers_total") for name in metrics) == len(counted)


def test_unix_socket_is_private_and_goes(served: tuple[FrontProcess, str]) -> None:
    _front, at = served
    path = Path(at.removeprefix("unix:"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_loopback_port_restarts_and_bad_requests() -> None:
    """On a port; a killed child shows; bad requests get their codes, and a silent one holds nobody for long."""
    with FrontProcess(metrics="127.0.0.1:0").wait_ready() as front:
        at = str(front.status()["metrics"])
        until("a snapshot", lambda: fetch(at)[0] == 200)
        for request, status in (
            (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
            (b"GET /else HTTP/1.1\r\n\r\n", 404),
            (b"\x16\x03\x01 no http\r\n\r\n", 400),
            (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 8200, 400),
        ):
            assert fetch(at, request)[0] == status
        host, port = at.split(":")
        with socket.create_connection((host, int(port))) as silent, front.client() as client:
            silent.send(b"GET /met")
            began = time.monotonic()
            assert [i for said in client.generate("x", max_tokens=5) for i in getattr(said, "ids", ())] == answer(
                "x", 5
            )
            # Behind the silent one, but not for ever; the service itself did not wait at all.
            until("tokens", lambda: metrics_of(at)["mtpd_tokens_total"] == 5, 15.0)
            assert time.monotonic() - began < 15
        psutil.Process(front.child_pid("engine")).kill()
        until("a restart", lambda: metrics_of(at)['mtpd_child_restarts_total{process="engine"}'] == 1, 15.0)


def test_place_is_taken(tmp_path: Path) -> None:
    """A port in use: exit code 4 with the place named, at once. A killed service's socket is no obstacle."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with FrontProcess(metrics=f"127.0.0.1:{taken.getsockname()[1]}") as front:
            assert front.process.wait(20) == 4
            assert "cannot serve metrics at 127.0.0.1" in front.errors()
    path = tmp_path / "m.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    port = MetricsPort(f"unix:{path}")
    port.close()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(Exception, match="cannot serve metrics"):
        MetricsPort(f"unix:{path}")
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    "bad", ["0.0.0.0:9464", "192.168.1.1:9464", "9464", "localhost:9464", "[::]:1", "unix:", "127.0.0.1:99999"]
)
def test_loopback_only(bad: str) -> None:
    """Numbers about what somebody runs are nobody else's business."""
    with pytest.raises(UserError, match="loopback"):
        parse_place(bad)
