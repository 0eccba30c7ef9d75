"""Each number that a command prints stands under its own heading, on answers that can be counted by hand."""

import re
from typing import Any

from bench_tool.test_load import _asked
from bench_tool.test_spec_summary import JUDGE, _run
from bench_tool.test_stream_cells import IDS, _served
from mtp_daemon.bench import load_summary, spec_summary, spec_text, stream_cells
from mtp_daemon.bench.commands import io
from mtp_daemon.bench.figures import Spread
from mtp_daemon.bench.load_summary import FrontCost
from mtp_daemon.bench.resident import Answer
from mtp_daemon.bench.stream_cells import Memory, Where, cell
from mtp_loader.pool.disk_choice import DiskChoice
from mtp_loader.replay.disk import Machine
from mtp_loader.replay.table import Plan, as_text, rows
from mtp_loader.replay.trace import DECODE, PROMPT, Forward, LayerFacts, Trace, event_of


def printed(text: str, first: str, second: str) -> list[tuple[str, str]]:
    """(heading, cell) of the one-row table with these first headings."""
    lines = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    at = next(i for i, line in enumerate(lines) if line[:2] == [first, second])
    return list(zip(lines[at], lines[at + 2], strict=True))


def spec() -> str:
    """Two runs of depth 1, one token wrong, beside plain runs of half their speed and two thirds of their loads."""
    held = {"cache_bytes": 2_000_000, "memory_start_bytes": 1_000_000, "memory_peak_bytes": 7_500_000}
    runs = [_run(ids, 12_000, tok_per_s=speed, **held) for ids, speed in ((JUDGE, 2.0), ([5, 6, 7, 0], 4.0))]
    plain = [_run(tok_per_s=1.0, loads=8_000), _run(tok_per_s=2.0, loads=8_000)]
    memory = {"parts": {"pool": 3_000_000}, "processes": {"engine": 7_000_000}, "sum": 8_000_000}
    results: dict[str, Any] = {
        "depths": [spec_summary.summary(1, runs, plain, JUDGE)], "memory": memory, "pinned": 3,
        "calibrated_tokens": 64, "margins": [0.5, 0.25], "slots_verified": 99, "verify_mismatches": 0,
    }  # fmt: skip
    return spec_text.text(results)


def test_spec_s_speed_and_what_was_read() -> None:
    assert printed(spec(), "depth", "tok/s") == [
        ("depth", "1"), ("tok/s", "3.00 (2.00-4.00)"), ("speed-up", "2.00 (2.00-2.00)"), ("exact", "NO, 1 of 8 differ"),
        ("tokens a round", "2.00"), ("acceptance by position", "100%"), ("rounds x tokens", "2x2"),
        ("direct commits", "2"), ("fallbacks", "0"),
    ]  # fmt: skip
    assert printed(spec(), "depth", "hit rate") == [
        ("depth", "1"), ("hit rate", "75.0%"), ("misses a token", "2.50"), ("loads", "12000"), ("of plain", "1.50"),
        ("MB read", "12.0"), ("of plain", "1.50"), ("prefetches", "5"), ("in time", "2"),
    ]  # fmt: skip


def test_spec_s_seconds_by_part_and_the_speed_without_each() -> None:
    """Of 2 s for four tokens: draft 0.2, verify 1, sync 0.4, commit 0.1, waiting 0.5 within them, the rest 0.3."""
    assert printed(spec(), "depth", "decode s") == [
        ("depth", "1"), ("decode s", "2.00"), ("draft s", "0.200"), ("verify s", "1.000"), ("sync s", "0.400"),
        ("commit s", "0.100"), ("stall s", "0.500"), ("finish s", "0.300"), ("no draft", "2.2"), ("no verify", "4.0"),
        ("no sync", "2.5"), ("no commit", "2.1"), ("no stall", "2.7"), ("no finish", "2.4"),
    ]  # fmt: skip


def test_spec_s_unions_memory_and_checks() -> None:
    lines = [re.split(r" {2,}", line.strip()) for line in spec().splitlines()]
    assert ["1, 1", "4.0", "4", "4", "4"] in lines and ["1, 2", "7.5", "8", "8", "8"] in lines
    assert ["pool", "3.0"] in lines and ["engine, peak", "7.0"] in lines
    assert ["caches, at an answer's end", "2.0"] in lines and ["activations, at the peak", "4.5"] in lines
    assert ["all three at once, peak", "8.0"] in lines
    assert "pinned: 3 experts, hottest of 64 tokens" in spec()
    assert "over 2 steps, the smallest: 0.2500 at token 1, 0.5000 at token 0" in spec()
    assert "99 slots hashed at use, 0 bad; 0 tokens differ" in spec()


def test_stream_s_columns() -> None:
    served = [_served(decode_bytes_read=40e6, bytes_read=140e6, prefetched_bytes=10e6)]
    found = cell(Where(50, "cold"), served, [Answer(IDS, 1.0, 0.8)], 1e9, Memory(peak=900_000_000, beyond=100_000_000))
    assert printed(stream_cells.text([found]), "pool, page cache or disk", "of resident") == [
        ("pool, page cache or disk", "50 %, cold"), ("of resident", "0.800 (0.800-0.800)"), ("of bound", "0.80"),
        ("tok/s", "4.00 (4.00-4.00)"), ("resident tok/s", "5.00 (5.00-5.00)"),
        ("prefill of resident", "0.50 (0.50-0.50)"),
        ("hit rate", "75.0%"), ("MB a token", "10.0"), ("stall ms a token", "200.0"), ("prompt MB", "100.0"),
        ("peak MB", "900"), ("beyond pool, dense", "100"), ("exact", "yes"),
    ]  # fmt: skip


def test_serve_s_rows() -> None:
    """Twenty answers, one of which waited three seconds longer: it is the 99th percentile and not the 95th."""
    late = _asked(client=1)
    late.runs[:] = [(at + 3.0, count) for at, count in late.runs]
    result = load_summary.summary([*(_asked() for _ in range(19)), late], FrontCost(0.5, 10.0, 0.01))
    text = load_summary.text(result)
    lines = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    assert ["ms", "p50", "p95", "p99"] in lines
    assert ["first token, from when it was due", "1000.00", "1000.00", "4000.00"] in lines
    assert ["of it in the queue", "250.00", "250.00", "250.00"] in lines
    assert ["time a token after the first", "200.00", "200.00", "200.00"] in lines
    assert ["engine sends to client has (first token)", "100.00", "100.00", "3100.00"] in lines
    assert f"20 requests (20 length), 80 tokens, {80 / 4.6:.2f} tok/s" in text
    waiting = (1 + 4) ** 2 / (2 * (1 + 16))
    assert f"over 2 clients (Jain): waiting {waiting:.3f}" in text
    assert "front: 5.000 ms of CPU a token, 5.00% of a core (1.00% idle); 26.00% at 50 tok/s" in text


def _counted_trace() -> Trace:
    """One layer of four experts, a megabyte each, one a token: 0 in the prompt, then 0 1 0 1 2 0 by two slots."""
    forwards = []
    for step, expert in enumerate((0, 0, 1, 0, 1, 2, 0)):
        phase = PROMPT if step == 0 else DECODE
        event = event_of(0, [(expert,)], [[1.0]])
        forwards.append(Forward(step, phase, (step,), (event,), ((0, ((expert,),)),)))
    return Trace("counted", "m", {0: LayerFacts(0, 0, 4, 1, 1_000_000)}, forwards)


def test_replay_s_columns() -> None:
    """LRU misses 1, 2 and the last 0: it gave 0 up for 2. Belady gives 1 up and misses two of six.

    Six layers at 0.5 s of compute; three reads of a megabyte at 2 MB/s.
    """
    found = rows(_counted_trace(), Plan(("lru",), (0.5,), ("none",), Machine(2e6, 0.5), reserve=0))
    head, cells = as_text(found).splitlines()[1], as_text(found).splitlines()[-1].split()
    assert re.split(r" {2,}|(?<=s) (?=compute)|(?<=n) (?=compute)|(?<=token) ", head.strip()) == [
        "share", "policy", "predictor", "hit", "of best", "coverage", "waste", "MB/token", "compute s", "stall s",
        "bound s",
    ]  # fmt: skip
    assert cells == ["50.0%", "lru", "none", "50.00%", "0.750", "0.0%", "0.00", "0.5", "3.00", "1.50", "3.00"]


def test_io_s_rows_and_columns() -> None:
    """A block a mode, a row a reader, a column a number of threads."""
    speeds = {(0, 1): 1.0, (0, 4): 2.0, (64, 1): 3.0, (64, 4): 4.0}
    rates = [
        io.Rate(direct, kib, threads, Spread.of([gbps + direct / 2]))
        for direct in (True, False)
        for (kib, threads), gbps in speeds.items()
    ]
    text = io._text([1, 4], rates, DiskChoice(4, True, 2.5), None)
    found = [re.split(r" {2,}", line.strip())[1:] for line in text.splitlines() if " (" in line and "-" in line]
    ones = [
        [f"{gbps:.2f} ({gbps:.2f}-{gbps:.2f})" for gbps in pair] for pair in ((1.5, 2.5), (3.5, 4.5), (1, 2), (3, 4))
    ]
    assert found == ones
    assert "readers = 4, direct = on: 2.50 GB/s; not kept" in text
