"""Statistics on disk: they come back, and a file that is not ours or not whole changes nothing."""

from pathlib import Path

import numpy as np
import pytest

from mtp_loader.policy.interface import expert_of
from mtp_loader.predict.blend import LayerShape, Predictor
from mtp_loader.predict.memory import load, save


def predictor(experts: int = 16) -> Predictor:
    return Predictor({y: LayerShape(experts, 2) for y in range(3)})


def taught() -> Predictor:
    p = predictor()
    for token in range(9):
        p.on_used((token,), [(y, ((token, token + 1),)) for y in range(3)])
    return p


def test_there_and_back(tmp_path: Path) -> None:
    """A service that starts with statistics of an earlier run knows what that run knew."""
    path = tmp_path / "s.npz"
    known = taught()
    save(known, "abc", path)
    p = predictor()
    assert load(p, "abc", path) is None
    assert p.likely(20, [0, 1, 2]) == known.likely(20, [0, 1, 2])
    p.on_start((4,))
    assert {expert_of(k) for k, _ in p.wanted(2)} == {4, 5}
    assert np.array_equal(p.transitions.counts[1], known.transitions.counts[1])
    assert [f.name for f in tmp_path.iterdir()] == ["s.npz"]


@pytest.mark.parametrize("damage", ["half", "empty", "noise", "zip", "deflate"])
def test_a_damaged_file_is_ignored_with_a_line(tmp_path: Path, damage: str) -> None:
    """Half-written by a crash or a full disk: a line for the log, and a predictor as it was."""
    path = tmp_path / "s.npz"
    save(taught(), "abc", path)
    whole = path.read_bytes()
    flipped = whole[:200] + bytes(255 - b for b in whole[200:400]) + whole[400:]
    if damage == "deflate":  # written by another program, compressed
        np.savez_compressed(path, version=np.arange(500))
        packed = path.read_bytes()
        whole = flipped = packed[:90] + bytes(255 - b for b in packed[90:200]) + packed[200:]
    contents = {"half": whole[: len(whole) // 2], "empty": b"", "noise": b"x" * 99, "zip": flipped, "deflate": flipped}
    path.write_bytes(contents[damage])
    p = predictor()
    assert "ignored" in (load(p, "abc", path) or "")
    assert p.likely(9, [0, 1, 2]) == []


def test_another_checkpoints_statistics_are_ignored(tmp_path: Path) -> None:
    """Two models of one shape route differently."""
    path = tmp_path / "s.npz"
    save(taught(), "abc", path)
    assert "another checkpoint" in (load(predictor(), "abd", path) or "")


def test_a_large_models_file_stays_below_a_megabyte(tmp_path: Path) -> None:
    """48 layers of 512 experts count 25 MB of transitions: each expert's likeliest followers are kept, and the uses."""
    shapes = {y: LayerShape(512, 10) for y in range(48)}
    known, p = Predictor(shapes), Predictor(shapes)
    rows = tuple(tuple((token + 3 * k) % 512 for k in range(10)) for token in range(450))
    known.on_used(tuple(range(450)), [(y, rows) for y in range(48)])
    for _ in range(3):
        known.on_used((7,), [(y, (tuple(range(10)),)) for y in range(48)])
    path = tmp_path / "s.npz"
    save(known, "abc", path)
    assert path.stat().st_size < 1_000_000
    assert load(p, "abc", path) is None
    assert p.likely(500, list(shapes)) == known.likely(500, list(shapes))
    assert set(p.tokens.fed) < set(known.tokens.fed) and 7 in p.tokens.fed
    counted = known.transitions.counts[5][3]
    assert p.transitions.counts[5][3].max() == counted.max()
    assert set(p.transitions.counts[5][3].nonzero()[0]) <= set(counted.nonzero()[0])


def test_another_shape_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    save(taught(), "abc", path)
    p = predictor(experts=8)
    assert "shape" in (load(p, "abc", path) or "")
    assert p.likely(9, [0, 1, 2]) == []


def test_none_yet_is_no_error(tmp_path: Path) -> None:
    assert "yet" in (load(predictor(), "abc", tmp_path / "none") or "")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full in the middle."""
    path = tmp_path / "s.npz"
    save(taught(), "abc", path)

    def full(*_args: object, **_arrays: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        save(predictor(), "abc", path)
    assert load(predictor(), "abc", path) is None
    assert [f.name for f in tmp_path.iterdir()] == ["s.npz"]
