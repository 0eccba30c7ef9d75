"""What `mtp-bench stream` makes of paired runs, on a case that can be counted by hand."""

from typing import Any
from xml.etree import ElementTree

import pytest

from mtp_daemon.bench.resident import Answer
from mtp_daemon.bench.serving import Served
from mtp_daemon.bench.stream_cells import Cell, Memory, Where, cell, gbps_for, speed_chart, stall_chart
from mtp_loader.chart import svg

IDS = [1, 2, 3, 4, 5]
MEMORY = Memory(peak=900, beyond=100)
HALF_COLD = Where(50, "cold")


def _served(ids: list[int] = IDS, **changed: Any) -> Served:
    """A first token after 2 s, then four at 4 a second: 40 bytes of 140 in decode, ten of them read ahead."""
    stats = {"tok_per_s": 4.0, "ttft_s": 2.0, "hits": 6, "misses": 2, "bytes_read": 140, "prefetched_bytes": 10,
             "decode_bytes_read": 40, "decode_stall_s": 0.8}  # fmt: skip
    return Served(ids, {**stats, **changed})


def _cell(where: Where = HALF_COLD, bandwidth: float = 1000.0, **changed: Any) -> Cell:
    resident = Answer(IDS, prefill_s=1.0, decode_s=0.8)  # 5 tokens a second
    return cell(where, [_served(**changed)], [resident], bandwidth, MEMORY)


def test_ratios_bytes_and_stall_are_a_token_s() -> None:
    found = _cell()
    assert found.ratio.median == pytest.approx(4 / 5)
    assert found.prefill_ratio.median == pytest.approx(1 / 2)
    assert found.compute_s == pytest.approx(0.2)
    assert (found.bytes_per_token, found.prompt_bytes) == (10, 100)
    assert found.stall_s_per_token == pytest.approx(0.2)
    assert (found.hit_rate, found.exact, found.memory) == (0.75, True, MEMORY)


def test_the_bound_is_compute_until_the_disk_is_slower() -> None:
    assert _cell(bandwidth=1000.0).bound_tok_per_s == pytest.approx(5)
    assert _cell(bandwidth=1000.0).of_bound == pytest.approx(0.8)
    assert _cell(bandwidth=20.0).bound_tok_per_s == pytest.approx(2), "10 bytes at 20 a second"


def test_one_other_token_and_the_cell_is_not_exact() -> None:
    assert not _cell(ids=[1, 2, 3, 4, 6]).exact


def test_a_disk_is_slowed_until_reads_take_their_multiple_of_compute() -> None:
    gbps = gbps_for(4.0, compute_s=0.2, bytes_per_token=1.6e9)
    assert gbps == pytest.approx(2.0)
    assert 1.6e9 / (gbps * 1e9) == pytest.approx(4.0 * 0.2)


def test_pictures_have_a_line_for_each_page_cache_and_for_each_share_of_slowed_disks() -> None:
    cells = [_cell(Where(share, cache)) for share in (50, 25) for cache in ("warm", "cold")]
    slowed = [_cell(Where(25, "slowed", gbps)) for gbps in (2.0, 0.5)]
    speed = speed_chart([*cells, *slowed], {"other": [(25, 1.0), (50, 2.0)]})
    assert speed.lines["mtpd, warm"] == [(25, pytest.approx(4.0)), (50, pytest.approx(4.0))]
    assert set(speed.lines) == {
        "mtpd, warm",
        "mtpd, cold",
        "bound, warm",
        "bound, cold",
        "mlx-lm, all resident",
        "other",
    }
    stall = stall_chart([*cells, *slowed])
    assert [x for x, _ in stall.lines["pool 25 %"]] == [0.5, 2.0] and list(stall.lines) == ["pool 25 %"]


def test_a_machine_that_drifts_between_cells_bends_no_line() -> None:
    slow = Answer(IDS, prefill_s=2.0, decode_s=1.6)  # half as fast as before, and so is the service
    drifted = cell(Where(25, "cold"), [_served(tok_per_s=2.0)], [slow], 1000.0, MEMORY)
    lines = speed_chart([_cell(), drifted], {}).lines
    assert lines["mtpd, cold"][0][1] == pytest.approx(lines["mtpd, cold"][1][1])
    assert lines["bound, cold"][0][1] == pytest.approx(lines["bound, cold"][1][1])


def test_a_chart_puts_points_where_its_axes_say() -> None:
    root = ElementTree.fromstring(svg(speed_chart([_cell(Where(50, "warm")), _cell(Where(100, "warm"))], {})))
    lines = root.findall("{*}polyline")
    assert len(lines) == 3
    (x1, y1), (x2, y2) = (tuple(map(float, p.split(","))) for p in lines[0].attrib["points"].split())
    left, width = 60, 760 - 60 - 190
    assert (x1, x2) == pytest.approx((left + width / 2, left + width)) and y1 == y2
