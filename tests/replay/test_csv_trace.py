"""CSV recordings: rows become events, prompts are taken token by token, damage is named."""

from pathlib import Path

import pytest

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.policy.interface import key_of
from mtp_loader.replay.csv_trace import read_csv

HEAD = "# route_trace v1\n# model=m n_expert=8 n_expert_used=2\n# layer=0 expert_bytes=5\n# layer=1 expert_bytes=6\n"
ROWS = [  # the prompt comes layer by layer
    "0,0,0,0,0,3,0.6,0,5", "0,0,0,0,1,1,0.4,0,5", "0,0,1,0,0,2,0.9,0,5", "0,0,1,0,1,0,0.1,0,5",
    "0,0,0,1,0,7,0.6,0,6", "0,0,0,1,1,6,0.4,0,6", "0,1,2,0,0,1,1.0,0,5", "0,1,2,0,1,2,0.0,0,5",
]  # fmt: skip


def test_rows_become_events_token_by_token(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "\n".join(ROWS) + "\n")
    trace = read_csv(path)
    assert [(f.step, f.phase, [e.layer for e in f.events]) for f in trace.forwards] == [
        (0, 0, [0, 1]), (1, 0, [0]), (2, 1, [0]),
    ]  # fmt: skip
    assert trace.events[0].keys == (1, 3)
    assert trace.events[1].keys == (key_of(1, 6), key_of(1, 7))
    assert [trace.layers[y].bytes for y in (0, 1)] == [5, 6]
    assert trace.slots(0.5) == {0: 8}


def test_a_cut_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "\n".join(ROWS) + "\n0,1,3,0,0")
    trace = read_csv(path)
    assert len(trace.forwards) == 3
    assert "cut short" in trace.note


@pytest.mark.parametrize("rows", [["0,1,x,0,0,1,1.0"], []])
def test_what_is_no_recording_is_refused(tmp_path: Path, rows: list[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "\n".join([*rows, ""]))
    with pytest.raises(DamagedCheckpoint, match=r"t\.csv"):
        read_csv(path)
