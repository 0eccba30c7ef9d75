"""A bug in prediction ends prediction and nothing else, whenever it happens."""

import pytest

from mtp_loader.service.foresight import Foresight
from mtp_loader.service.settings import LoaderSettings
from mtp_loader.service.watch import Watch
from mtp_protocol.geometry import Bank, Geometry, Layer, Plane, Quantisation


def test_a_bug_before_there_is_a_pool_ends_prediction_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader ticks from its start on; the pool comes later."""
    bank = Bank(0, (Plane("gate.weight", "float32", "float32", (4,)),), *(Quantisation(),) * 3, (0, 1))
    geometry = Geometry("f" * 16, "t", True, 1, (bank,), tuple(Layer(y, 0, 4, 2) for y in range(2)))

    def broken(foresight: Foresight) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Foresight, "tick", broken)
    watch = Watch(geometry, LoaderSettings(), "model", lambda: None)
    watch.tick()
    assert watch.foresight is None
    assert "given up after an error" in watch.facts()["statistics"]
    watch.close()
