"""The commands end to end on the demo model, small: what they print, write and draw."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mtp_daemon.bench.cli import COMMANDS, main
from mtp_daemon.bench.peers import read_peers
from mtp_daemon.errors import UserError


def _told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_spec_judges_hashes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--tokens", "6", "--repeats", "1", "--depths", "2", "--pool", "50%"]
    checks = ["--margins", "--dump-ids", "--verify-bytes"]
    picture = tmp_path / "p.svg"
    assert main(["spec", "demo", *short, *checks, "--json", "--picture", str(picture)]) == 0
    told = _told(capsys)
    found = told["results"]
    assert [d["depth"] for d in found["depths"]] == [0, 2] and all(d["exact_match"] for d in found["depths"])
    assert found["ids"]["0"] == found["ids"]["2"] == [found["reference_ids"]]
    assert (found["pinned"], len(found["margins"])) == (None, 6)
    assert found["slots_verified"] > 0 and found["verify_mismatches"] == 0
    assert told["machine"]["cores"] and told["arguments"]["pool"] == "50%"
    assert len(ElementTree.parse(picture).findall("{*}polyline")) == 1


def test_stream_stands_beside_resident_and_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers = tmp_path / "peers.json"
    peers.write_text('[{"name": "other", "of_resident": [[25, 0.5]]}]')
    short = ["--shares", "25", "--cache", "warm", "--tokens", "6", "--prompt-tokens", "8", "--repeats", "1"]
    more = ["--disk-ratio", "1", "--peers", str(peers), "--picture", str(tmp_path / "p.svg"), "--json"]
    assert main(["stream", "demo", *short, *more]) == 0
    warm, slowed = _told(capsys)["results"]["cells"]
    assert warm["exact"] and slowed["exact"]
    assert slowed["where"]["gbps"] == pytest.approx(warm["bytes_per_token"] / warm["compute_s"] / 1e9)
    assert warm["of_bound"] == pytest.approx(warm["tok_per_s"]["median"] / warm["bound_tok_per_s"])
    assert "other" in (tmp_path / "p.svg").read_text()
    assert "pool 25 %" in (tmp_path / "p-stall.svg").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_s_help_teaches_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"  mtp-bench {command} " in capsys.readouterr().out


def test_peers_are_tokens_a_second_or_shares_of_resident(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    path.write_text('[{"name": "a", "tok_per_s": [[50, 4], [25, 3]]}, {"name": "b", "of_resident": [[50, 0.5]]}]')
    assert read_peers(path, 10.0) == {"a": [(25, 3), (50, 4)], "b": [(50, 5)]}


@pytest.mark.parametrize("text", ["", "{}", "[3]", '[{"name": "a"}]', '[{"name": "a", "tok_per_s": [["x"]]}]'])
def test_peers_that_are_none_are_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"peers\.json"):
        read_peers(path, 10.0)


@pytest.mark.parametrize(("command", "flag", "said"), [("stream", "--peers", "peers"), ("spec", "--prompt", "prompt")])
@pytest.mark.parametrize("text", [None, "{", '{"a": 1}'])
def test_a_wrong_file_is_told_before_anything_is_measured(
    command: str, flag: str, said: str, text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def measured(*_: object) -> None:
        raise AssertionError("a service was started")

    monkeypatch.setattr("mtp_daemon.bench.serving.subprocess.Popen", measured)
    file = tmp_path / f"{said}.json"
    if text is not None:
        file.write_text(text)
    assert main([command, "demo", flag, str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["spec", "demo", "--picture", "p.gif"])
    assert ".svg or .png" in capsys.readouterr().err


_STARTED = """
import time
from mtp_daemon.bench import cli
from mtp_daemon.bench.commands import io

def run(args):
    try:
        print("measuring", flush=True)
        time.sleep(60)
    finally:
        print("what was started is ended", flush=True)

io.run = run
cli.main(["io", "demo"])
"""


def test_a_command_that_is_terminated_ends_what_it_started() -> None:
    with subprocess.Popen([sys.executable, "-c", _STARTED], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "measuring\n"
        command.terminate()
        assert command.stdout.read() == "what was started is ended\n"
    assert command.returncode == 143
