"""A file that is read, yet was recorded from no model: refused by name before a replay trusts it."""

from pathlib import Path
from typing import Any

import msgpack
import pytest

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.replay.read import read_trace

ONE = b"\x01\x00"
HALF = b"\x00\x38"  # 0.5 as a float16
NAN = b"\x00\x7e"


def recording(path: Path, *entries: Any, layers: Any = ((0, 0, 8, 2, 5),), **header: Any) -> Path:
    facts = {"format": "mtp-routing", "version": 1, "model": "m", "fingerprint": "f", "layers": layers, **header}
    path.write_bytes(b"".join(msgpack.packb(value) for value in (facts, *entries)))
    return path


def used(layer: Any = 0, expert: bytes = ONE, weight: bytes = HALF, phase: int = 1) -> Any:
    return ["used", 0, phase, [7], [[layer, 1, expert, weight]]]


def test_a_possible_one_is_read(tmp_path: Path) -> None:
    assert len(read_trace(recording(tmp_path / "r", used())).forwards) == 1


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (used(layer=3), "layer 3, which it does not describe"),
        (used(layer=None), "broken entry"),
        (used(expert=b"\x08\x00"), "none of its 8"),
        (used(weight=NAN), "no number"),
        (used(phase=5), "phase 5"),
    ],
)
def test_a_forward_that_cannot_be(tmp_path: Path, entry: Any, says: str) -> None:
    with pytest.raises(DamagedCheckpoint, match=says):
        read_trace(recording(tmp_path / "r", entry))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"model": 3}, "which model"),
        ({"fingerprint": None}, "which model"),
        ({"layers": []}, "no layer"),
        ({"layers": [[0, 0, 8, 2, -5]]}, "no counts"),
        ({"layers": [[0, 0, 8, 9, 5]]}, "asks for 9"),
        ({"layers": [[0, 0, 8, 0, 5]]}, "asks for 0"),
        ({"layers": [[0, 0, 1 << 20, 2, 5]]}, "1048576 experts"),
        ({"layers": [[0, 0, 8, 2.0, 5]]}, "no counts"),
    ],
)
def test_a_header_that_cannot_be(tmp_path: Path, header: Any, says: str) -> None:
    with pytest.raises(DamagedCheckpoint, match=says):
        read_trace(recording(tmp_path / "r", **header))


def test_a_list_as_a_key_ends_what_is_whole(tmp_path: Path) -> None:
    path = recording(tmp_path / "r", used())
    path.write_bytes(path.read_bytes() + b"\x81\x91\x01\x01")
    assert "cut short" in read_trace(path).note


HEAD = "# route_trace v1\n# model=m n_expert={n}\n# layer=0 expert_bytes=5\n"


@pytest.mark.parametrize(
    ("experts", "row"),
    [
        ("8", "0,1,0,0,0,9,0.5"),
        ("8", "0,1,0,0,0,-1,0.5"),
        ("8", "0,1,0,0,0,65537,0.5"),  # as the low half of a key it would pass for expert 1 of the next layer
        ("8", "0,1,0,0,0,1,nan"),
        ("8", "0,1,0,4,0,1,0.5"),
        ("8", "0,7,0,0,0,1,0.5"),
        ("x", "0,1,0,0,0,1,0.5"),
        ("٨", "0,1,0,0,0,1,0.5"),
    ],
)
def test_a_csv_that_cannot_be(tmp_path: Path, experts: str, row: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEAD.format(n=experts) + row + "\n", encoding="utf-8")
    with pytest.raises(DamagedCheckpoint, match=r"t\.csv"):
        read_trace(path)


def test_a_csv_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"# route_trace v1\n\xff\xfe\n")
    with pytest.raises(DamagedCheckpoint, match="not text"):
        read_trace(path)
