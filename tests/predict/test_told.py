"""What is told of prediction: minute by minute, and by source over all layers."""

import pytest

from mtp_loader.predict.attribution import Attribution
from mtp_loader.predict.recall import Meter
from mtp_loader.service.told import MINUTE_S, Minutes, recall_by_layer, recall_by_source


def test_a_minute_tells_what_it_added() -> None:
    """Sums since the start hide that prefetching stopped working an hour ago."""
    minutes, counts = Minutes(0.0), Attribution()
    counts.hits, counts.late = 7, 2
    minutes.tick(counts, MINUTE_S / 2)
    assert minutes.told() == []
    minutes.tick(counts, MINUTE_S)
    minutes.tick(counts, 2 * MINUTE_S)  # nothing was asked
    counts.useful, counts.hits = 3, 10
    minutes.tick(counts, 3 * MINUTE_S)
    first, second = minutes.told()
    assert (first["hits"], first["late"], first["at_s"]) == (7, 2, MINUTE_S)
    assert (second["hits"], second["late"], second["useful"], second["coverage"]) == (3, 0, 3, 1.0)


def test_recall_over_layers_weighs_by_what_was_wanted() -> None:
    meters = {0: {"hint1": Meter(0.5, 30, 30, 30)}, 1: {"hint1": Meter(0.5, 10, 0, 5)}}
    assert recall_by_source(meters)["hint1"] == pytest.approx({"at_k": 0.75, "at_2k": 0.875, "wanted": 40})
    assert recall_by_layer(meters)["1"]["hint1"]["at_k"] == 0.0
