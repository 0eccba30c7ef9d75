"""Percentiles, fairness, bounds and tables on cases that can be counted by hand."""

import pytest

from mtp_daemon.bench.figures import Spread, decode_bound, jain, paired_ratio, percentile, table
from mtp_protocol.ranks import Sizes


def test_a_percentile_is_the_nearest_rank() -> None:
    values = [float(v) for v in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3
    assert percentile([7.0], 0.01) == 7
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 0.5)


def test_fairness_is_one_for_equals_and_one_nth_where_one_has_all() -> None:
    assert jain([2.0, 2.0, 2.0]) == 1
    assert jain([6.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert jain([1.0, 3.0]) == pytest.approx(16 / (2 * 10))
    assert jain([0.0, 0.0]) == 1


def test_the_bound_is_the_larger_of_compute_and_reads() -> None:
    assert decode_bound(0.2, 50e6, 1e9) == 5, "50 ms of reads hide behind 200 ms of compute"
    assert decode_bound(0.02, 50e6, 1e9) == 20, "and 20 ms of compute behind the reads"
    assert decode_bound(0.25, 0.0, 1e9) == 4


def test_sizes_are_counted_as_often_as_they_were_seen() -> None:
    assert Sizes.of({4: 98, 10: 2}) == Sizes(mean=(4 * 98 + 20) / 100, p50=4, p99=10, largest=10)
    assert Sizes.of({4: 99, 10: 1}).p99 == 4
    assert Sizes.of({3: 1, 5: 1, 9: 1}) == Sizes(mean=17 / 3, p50=5, p99=9, largest=9)
    with pytest.raises(ValueError, match="nothing was measured"):
        Sizes.of({})


def test_ratios_are_taken_pair_by_pair() -> None:
    assert paired_ratio([10.0, 30.0, 20.0], [10.0, 20.0, 40.0]) == Spread(1.0, 0.5, 1.5)
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of([])


def test_a_table_s_columns_line_up() -> None:
    assert table(["a", "long"], [["bcd", "1"]]) == "a    long\n---  ----\nbcd     1"
