"""The picture of a replay: hit rate over residency, a line a policy."""

from collections.abc import Mapping, Sequence

from mtp_loader.chart import Axis, Chart

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Name to (residency, hit rate) points, shares 0..1, residency rising."""


def hit_rates(title: str, curves: Curves) -> Chart:
    percent = {name: [(100 * x, 100 * y) for x, y in points] for name, points in curves.items()}
    return Chart(title, Axis("residency (share of all experts)", " %"), Axis("hit rate in decode", " %", 100), percent)
