"""The compact recording: what was told comes back, torn tails are left out, other files are refused."""

import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.policy.interface import key_of
from mtp_loader.replay.recording import Recorder, entry_of, header_of, is_recording, read_recording
from mtp_loader.service.recent import RecentRouting
from mtp_protocol.expert_messages import Hint, Used
from mtp_protocol.geometry import Bank, Geometry, Layer, Plane, Quantisation

GEOMETRY = Geometry(
    "f" * 16,
    "tiny",
    True,
    1,
    (Bank(0, (Plane("gate.weight", "float32", "float32", (4,)),), *(Quantisation(),) * 3, (0, 1)),),
    (Layer(0, 0, 8, 2), Layer(1, 0, 8, 2, is_head=True)),
)
_TRUNK = (0, ((1, 2), (2, 5)), ((0.5, 0.5), (0.75, 0.25)))
_HEAD = (1, ((7, 0), (7, 1)), ((1.0, 0.0), (1.0, 0.0)))
USED = Used(3, 1, (11, 12), (_TRUNK, _HEAD), 3, 3)
HINT = Hint(3, ((1, ((7, 0.5), (0, 0.25))),))


def written(path: Path) -> Path:
    recorder = Recorder(path, GEOMETRY, "a model")
    recorder.hint(HINT)
    recorder.used(entry_of(USED))
    recorder.close()
    return path


def test_there_and_back(tmp_path: Path) -> None:
    trace = read_recording(written(tmp_path / "r"))
    (forward,) = trace.forwards
    assert (trace.model, trace.note, forward.step, forward.phase, forward.tokens) == ("a model", "", 3, 1, (11, 12))
    assert [e.keys for e in forward.events] == [(1, 2, 5), (key_of(1, 0), key_of(1, 1), key_of(1, 7))]
    assert forward.events[0].weights == (0.5, 1.25, 0.25)
    assert forward.events[0].tokens == 2
    assert forward.rows[0] == (0, ((1, 2), (2, 5)))
    assert forward.hints == (((1, ((7, 0.5), (0, 0.25))),),)
    assert [trace.layers[0].bytes, trace.layers[1].top_k] == [16, 2]


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_torn_tail_is_left_out_and_said(tmp_path: Path, cut: int) -> None:
    """kill -9 or a full disk in the middle of an entry."""
    path = written(tmp_path / "r")
    entry = msgpack.packb(["used", 4, 1, [1], [[0, 2, b"\x01\x00" * 20, b"\x00\x00" * 20]]])
    path.write_bytes(path.read_bytes() + entry[:-cut])
    trace = read_recording(path)
    assert len(trace.forwards) == 1
    assert "cut short" in trace.note


def test_recording_goes_on_after_a_torn_tail(tmp_path: Path) -> None:
    """Appended behind half an entry, everything later would be unreadable."""
    path = written(tmp_path / "r")
    path.write_bytes(path.read_bytes()[:-3])
    assert len(read_recording(written(path)).forwards) == 1
    assert read_recording(path).note == ""


def test_another_models_recording_is_not_appended_to(tmp_path: Path) -> None:
    path = written(tmp_path / "r")
    with pytest.raises(DamagedCheckpoint, match="not a recording of this model"):
        Recorder(path, GEOMETRY, "another model")


@pytest.mark.parametrize("content", [b"", b"\x93abc", b"turn,phase\n", msgpack.packb({"format": "mtp-routing"})])
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r"
    path.write_bytes(content)
    with pytest.raises(DamagedCheckpoint):
        read_recording(path)


def test_a_broken_entry_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "r")
    path.write_bytes(path.read_bytes() + msgpack.packb(["used", 4, 1, [1], [[0, 2, b"\x01", b""]]]))
    with pytest.raises(DamagedCheckpoint, match="after forward 1"):
        read_recording(path)


def test_a_layer_without_facts_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "r"
    about = {"format": "mtp-routing", "version": 1, "model": "m", "fingerprint": "f", "layers": [[]]}
    path.write_bytes(msgpack.packb(about))
    with pytest.raises(DamagedCheckpoint, match="broken"):
        read_recording(path)


def test_the_two_kinds_are_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path / "r")
    csv = tmp_path / "c.csv"
    csv.write_text("# route_trace v1\n")
    assert is_recording(path)
    assert not is_recording(csv)


@pytest.mark.parametrize("limits", [{"limit_bytes": 10 * len(entry_of(USED))}, {"limit_forwards": 10}])
def test_recent_routing_is_bounded_and_cut_by_time(limits: dict[str, int], tmp_path: Path) -> None:
    """A service that runs for weeks keeps the newest forwards only; a calibration takes those since it began."""
    recent = RecentRouting(GEOMETRY, "a model", **limits)
    for step in range(30):
        recent.add(entry_of(replace(USED, step=step)), now=float(step))

    def steps(since: float) -> list[int]:
        with (tmp_path / "r").open("wb") as file:
            recent.write(file, since)
        return [forward.step for forward in read_recording(tmp_path / "r").forwards]

    assert steps(0.0) == list(range(20, 30))
    assert steps(27.0) == [28, 29]
    assert steps(99.0) == []


def test_recent_routing_of_any_length_is_the_newest_whole_entries(tmp_path: Path) -> None:
    """Forwards of one and of many tokens in turn: what does not fit before the end goes to the beginning, whole."""
    rng, came = random.Random(3), []
    recent = RecentRouting(GEOMETRY, "a model", limit_bytes=1000, limit_forwards=10)
    for number in range(500):
        entry = bytes(rng.randrange(256) for _ in range(rng.randint(1, 333)))
        recent.add(entry, now=float(number))
        came.append(entry)
        with (tmp_path / "r").open("wb") as file:
            recent.write(file, -1.0)
        kept = (tmp_path / "r").read_bytes().removeprefix(header_of(GEOMETRY, "a model"))
        held = next(n for n in range(len(came) + 1) if b"".join(came[len(came) - n :]) == kept)
        assert 1 <= held <= 10
        assert held >= min(2, len(came)), "two of at most 333 bytes fit in 1,000 wherever the first one lies"
    recent.add(bytes(1001), now=999.0)
    with (tmp_path / "r").open("wb") as file:
        recent.write(file, 998.0)
    assert (tmp_path / "r").read_bytes() == header_of(GEOMETRY, "a model")


def test_recent_routing_takes_all_its_memory_at_the_start() -> None:
    """Of a service that runs for weeks no part may still be growing after hours: nothing is kept beside the ring."""
    entry = entry_of(USED)
    recent = RecentRouting(GEOMETRY, "a model")
    recent.add(entry, now=0.0)
    tracemalloc.start()
    try:
        for step in range(2000):
            recent.add(entry, now=float(step))
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 2000


def test_a_weight_that_no_half_holds_is_recorded_as_the_largest(tmp_path: Path) -> None:
    """Routing is remembered by default: an odd router must not bring the loader down."""
    odd = replace(USED, routing=((0, ((1, 2),), ((1e9, -1e9),)),))
    recorder = Recorder(tmp_path / "r", GEOMETRY, "a model")
    recorder.used(entry_of(odd))
    recorder.close()
    assert read_recording(tmp_path / "r").forwards[0].events[0].weights == (65504.0, -65504.0)
