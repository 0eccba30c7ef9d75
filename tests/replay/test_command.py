"""`mtp-loader replay` as people and scripts call it."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mtp_loader.cli import main
from mtp_loader.policy.registry import CLAIRVOYANT, NAMES

HEAD = "# route_trace v1\n# model=m n_expert=8 n_expert_used=2\n# layer=0 expert_bytes=5000\n"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    rows = [f"0,{int(t > 4)},{t},0,{r},{(t * (r + 1)) % 8},0.5,0,0" for t in range(1, 40) for r in range(2)]
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "\n".join([*rows, ""]))
    return path


def test_json_has_every_policy_and_the_best_possible(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(recording), "--json", "--share", "50"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == [*NAMES, CLAIRVOYANT]
    for row in rows:
        assert row["hits"] + row["misses"] == row["requests"]
        assert row["of_best"] <= 1.0
        assert row["stall_s"] == pytest.approx(row["misses"] * 5000 / 3e9)
        assert row["bound_s"] == pytest.approx(max(row["compute_s"], row["stall_s"]))


def test_the_table_and_both_predictors(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--policy", "lru", "--predictor", "none", "--predictor", "blend", "--share", "50%"]
    assert main(["replay", str(recording), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    combinations = [line.split()[1:3] for line in lines if line.lstrip().startswith("50.0%")]
    assert combinations == [["lru", "none"], ["lru", "blend"]]


def test_the_picture_is_svg_with_a_line_a_policy(recording: Path, tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    assert main(["replay", str(recording), "--picture", str(picture), "--policy", "lru", "--policy", "belady"]) == 0
    root = ElementTree.parse(picture).getroot()
    assert len(root.findall(".//{http://www.w3.org/2000/svg}polyline")) == 2


@pytest.mark.parametrize(
    "options",
    [["--policy", "nonsense"], ["--picture", "p.gif"]],
)
def test_a_mistake_is_said_and_costs_exit_code_2(
    recording: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(recording), *options]) == 2
    assert "mtp-loader: " in capsys.readouterr().err


def test_no_recording_is_a_mistake(tmp_path: Path) -> None:
    assert main(["replay", str(tmp_path / "nothing")]) == 2
