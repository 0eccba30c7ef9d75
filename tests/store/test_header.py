"""The safetensors header is read as hostile, and a file that is not what its header says is refused by name."""

import json
import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.store.safetensors import MAX_HEADER_BYTES, read_header


def write(path: Path, entries: dict[str, Any] | bytes, data: bytes = b"") -> Path:
    raw = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(start: int, end: int, dtype: str = "U8", shape: list[Any] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"__metadata__": {}, "x": entry(0, 8), "y": entry(8, 16, "F32", [2])}, bytes(16))
    header = read_header(path)
    y = header.tensors["y"]
    assert (y.dtype, y.shape, y.nbytes) == ("F32", (2,), 8)
    assert y.offset == path.stat().st_size - 8
    assert list(header.tensors) == ["x", "y"]


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"x": entry(0, 8), "y": entry(4, 12)}, "overlaps"),
        ({"x": entry(0, 12), "y": entry(4, 8)}, "overlaps"),
        ({"x": entry(0, 12), "y": entry(0, 12)}, "overlaps"),
        ({"x": entry(0, 12, "F32", [4])}, "needs 16"),
        ({"x": entry(0, 12, "F5")}, "unknown type"),
        ({"x": {"dtype": 3, "shape": [12], "data_offsets": [0, 12]}}, "unknown type"),
        ({"x": entry(0, 12, "U8", [-12])}, "shape"),
        ({"x": entry(0, 12, "U8", [True, 12])}, "shape"),
        ({"x": entry(0, 12, "U8", [1.0, 12])}, "shape"),
        ({"x": entry(0, 12, "U8", [1] * 40 + [12])}, "shape"),
        ({"x": {"dtype": "U8", "shape": [0], "data_offsets": [12, 0]}}, "data_offsets"),
        ({"x": {"dtype": "U8", "shape": [12], "data_offsets": [0, 12, 24]}}, "data_offsets"),
        ({"x": {"dtype": "U8", "shape": [12], "data_offsets": "012"}}, "data_offsets"),
        ({"x": entry(0, 1 << 62, "U8")}, "should have"),
        ({"x": 12}, "no readable entry"),
        ({"x" * 2000: entry(0, 12)}, "no readable entry"),
        ({"__metadata__": 3, "x": entry(0, 12)}, "__metadata__"),
        (b"[1, 2]", "not a JSON object"),
        (b'{"x": ', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"x": {"dtype": "U8", "shape": [12], "data_offsets": [0, 12]}, "x": {}}', "twice"),
        (b'{"x": {"dtype": "U8", "dtype": "U8", "shape": [12], "data_offsets": [0, 12]}}', "twice"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, entries: dict[str, Any] | bytes, says: str) -> None:
    path = write(tmp_path / "a.safetensors", entries, bytes(12))
    with pytest.raises(DamagedCheckpoint, match=says) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("change", [-1, -8, +1])
def test_a_file_of_another_size_names_both_sizes(tmp_path: Path, change: int) -> None:
    path = write(tmp_path / "a", {"x": entry(0, 16)}, bytes(16 + change))
    has = path.stat().st_size
    with pytest.raises(DamagedCheckpoint, match=f"has {has} bytes but should have {has - change}"):
        read_header(path)


def test_a_header_longer_than_the_limit_is_not_read(tmp_path: Path) -> None:
    """A sparse file may claim any length: the claim is refused before memory is taken for it."""
    path = tmp_path / "a"
    path.write_bytes(struct.pack("<Q", MAX_HEADER_BYTES + 1))
    os.truncate(path, MAX_HEADER_BYTES * 2)
    with pytest.raises(DamagedCheckpoint, match="limit"):
        read_header(path)


@pytest.mark.parametrize("data", [b"", b"\0" * 7, struct.pack("<Q", 100) + b"{}"])
def test_a_file_too_short_for_its_header(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match=f"has {len(data)} bytes"):
        read_header(path)


def test_a_pipe_in_a_file_s_place_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(DamagedCheckpoint, match="not a regular file"):
        read_header(tmp_path / "a")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.text(max_size=8) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_fuzzed_headers_are_refused_or_consistent(tmp_path: Path, data: st.DataObject) -> None:
    """Any bytes: a clean refusal, or tensors that lie apart from each other inside the file."""
    entries: dict[str, Any] = {"x": entry(0, 8), "y": entry(8, 16, "F32", [2]), "z": entry(16, 20, "BF16", [2, 1])}
    victim = entries[data.draw(st.sampled_from(["x", "y", "z"]))]
    key = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
    victim[key] = data.draw(
        JSON_VALUES | st.lists(st.integers(0, 32), max_size=3) | st.sampled_from(["F16", "U8", "F32", "F8_E4M3"])
    )
    path = write(tmp_path / "a", entries, bytes(data.draw(st.sampled_from([0, 19, 20, 21, 32]))))
    if data.draw(st.booleans()):
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(raw)
    try:
        header = read_header(path)
    except DamagedCheckpoint:
        return
    ranges = sorted((t.offset, t.offset + t.nbytes) for t in header.tensors.values() if t.nbytes)
    assert all(a[1] <= b[0] for a, b in pairwise(ranges))
    assert all(start >= 8 and end <= path.stat().st_size for start, end in ranges)
