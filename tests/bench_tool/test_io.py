"""What the disk gives, what is chosen from it, and that the loader takes the choice where it is left to it."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from mtp_daemon.bench.cli import main
from mtp_daemon.bench.commands.io import Rate, choose
from mtp_daemon.bench.disk import Read, read_pieces
from mtp_daemon.bench.figures import Spread
from mtp_daemon.bench.loader_reads import read_experts
from mtp_loader.pool.disk_choice import NAME, DiskChoice, file_system_of, recall, remember
from mtp_loader.service.settings import parse_settings
from mtp_loader.store import open_source
from mtp_loader.store.resolve import resolve_model
from mtp_protocol.loader_messages import Stats, StatsRequest
from support.loader_process import scripted_front


def _rates(**gb_per_s: float) -> list[Rate]:
    """`direct_4=1.0` is what the loader's 4 readers got past the page cache."""
    rates = []
    for name, value in gb_per_s.items():
        mode, threads = name.split("_")
        rates.append(Rate(mode == "direct", 0, int(threads), Spread.of([value])))
    return rates


def test_fewer_threads_are_chosen_unless_more_give_a_twentieth() -> None:
    assert choose(_rates(direct_4=1.0, direct_8=1.04, cached_4=0.5, cached_8=0.5)) == DiskChoice(4, True, 1.0)
    assert choose(_rates(direct_4=1.0, direct_8=1.06, cached_4=0.5, cached_8=0.5)) == DiskChoice(8, True, 1.06)


def test_the_page_cache_is_passed_by_unless_it_is_a_fifth_faster() -> None:
    assert choose(_rates(direct_4=1.0, cached_4=1.19)).direct
    assert choose(_rates(direct_4=1.0, cached_4=1.21)) == DiskChoice(4, False, 1.21)


def test_a_choice_is_kept_for_its_file_system_and_no_other(tmp_path: Path) -> None:
    remember(tmp_path / "state", tmp_path, DiskChoice(4, True, 1.0))
    file = remember(tmp_path / "state", tmp_path, DiskChoice(6, False, 2.0))
    assert recall(tmp_path / "state", tmp_path) == DiskChoice(6, False, 2.0)
    kept = json.loads(file.read_text())
    assert list(kept) == [file_system_of(tmp_path)]
    file.write_text(json.dumps({"another": kept[file_system_of(tmp_path)]}))
    assert recall(tmp_path / "state", tmp_path) is None
    assert sorted(p.name for p in file.parent.iterdir()) == [NAME], "nothing half-written stays"


def test_a_file_system_is_known_by_its_id_and_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for fsid, blocks in ((1, 100), (2, 100), (1, 200)):
        found = SimpleNamespace(f_fsid=fsid, f_blocks=blocks, f_frsize=4096)
        monkeypatch.setattr("mtp_loader.pool.disk_choice.os.statvfs", lambda _, found=found: found)
        names.add(file_system_of(Path("any")))
    assert len(names) == 3


@pytest.mark.parametrize("text", ["", "[]", "{", '{"%s": {"readers": 0, "direct": true, "gb_per_s": 1}}', '{"%s": 3}'])
def test_a_damaged_file_of_choices_is_as_good_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text.replace("%s", file_system_of(tmp_path)))
    assert recall(tmp_path, tmp_path) is None
    remember(tmp_path, tmp_path, DiskChoice(4, True, 1.0))
    assert recall(tmp_path, tmp_path) == DiskChoice(4, True, 1.0)


def test_the_loader_takes_a_choice_only_where_its_settings_leave_it_free() -> None:
    found = DiskChoice(6, False, 1.0)
    free = parse_settings("{}").fitted(found)
    assert (free.threads, free.direct) == (6, "off")
    fixed = parse_settings('{"readers": 3, "direct": "on"}').fitted(found)
    assert (fixed.threads, fixed.direct) == (3, "on")


def test_a_loader_reads_as_was_found_for_its_disk(tmp_path: Path) -> None:
    demo = resolve_model("demo")
    remember(tmp_path / "state", demo, DiskChoice(3, False, 1.0))
    with scripted_front(tmp_path, demo, state_dir=str(tmp_path / "state")) as front:
        front.start(40)
        front.send(StatsRequest(1))
        stats = front.await_message(Stats).stats
    assert (stats["readers"], stats["direct_alignment"]) == (3, 1), "three threads, through the page cache"


def test_bytes_are_counted_as_they_are_read_and_no_piece_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(20 * 8192 + 1))
    offsets: list[int] = []
    preadv = os.preadv

    def counted(fd: int, buffers: list[bytearray], offset: int) -> int:
        offsets.append(offset)
        return preadv(fd, buffers, offset)

    monkeypatch.setattr("mtp_daemon.bench.disk.os.preadv", counted)
    assert read_pieces([path], 8192, 2, direct=False, total_bytes=6 * 8192).nbytes == 6 * 8192
    assert len(offsets) == len(set(offsets)) == 6
    assert Read(10, 4.0).bytes_per_s == 2.5


def test_the_loader_s_readers_read_every_expert_once() -> None:
    demo = resolve_model("demo")
    geometry = open_source(demo, widen=False).geometry
    assert read_experts(demo, 2, False, 1 << 40).nbytes == geometry.expert_bytes
    expert = geometry.banks[0].source_bytes
    assert read_experts(demo, 2, False, 5 * expert).nbytes == 5 * expert


def test_the_command_measures_a_model_chooses_and_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--sizes-kib", "64", "--threads", "2", "--mb", "2", "--repeats", "1", "--json"]
    assert main(["io", "demo", *few, "--state-dir", str(tmp_path), "--picture", str(tmp_path / "p.svg")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["command"] == "io"
    choice = told["results"]["choice"]
    assert recall(tmp_path, resolve_model("demo")) == DiskChoice(**choice)
    assert [r["kib"] for r in told["results"]["rates"]] == [64, 64, 0, 0]
    assert "loader, direct" in (tmp_path / "p.svg").read_text()
    assert main(["io", "no-such-file", "nor-this"]) == 2
