"""How a pool's bytes are divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_loader.errors import BadRequest
from mtp_loader.pool.layout import PAGE, make_layout, reserve_slots
from mtp_protocol.geometry import Bank, Geometry, Layer, Plane, Quantisation

PLAIN = Quantisation()


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """One to four banks of odd row sizes, with layers of different expert counts."""
    banks, layers = [], []
    for b in range(draw(st.integers(1, 4))):
        planes = tuple(
            Plane(f"gate.{name}", "float32", "float32", (draw(st.integers(1, 300)), draw(st.integers(1, 40))))
            for name in ("weight", "scales")
        )
        counts = draw(st.lists(st.integers(2, 40), min_size=1, max_size=4))
        first = len(layers)
        layers += [Layer(first + i, b, n, draw(st.integers(1, min(n, 8)))) for i, n in enumerate(counts)]
        banks.append(Bank(b, planes, PLAIN, PLAIN, PLAIN, tuple(range(first, len(layers)))))
    return Geometry("f", "t", True, 1, tuple(banks), tuple(layers))


@given(geometries(), st.floats(0.0, 1.3))
def test_a_layout_keeps_every_promise(geometry: Geometry, share: float) -> None:
    """Within the budget, no bank under its minimum or over its experts, planes on pages, nothing wasted."""
    budget = max(geometry.minimum_bytes, int(share * geometry.expert_bytes))
    layout = make_layout(geometry, budget, 3)
    used, ends = 0, [0]
    for bank, placed in zip(geometry.banks, layout.banks, strict=True):
        total = sum(y.experts for y in geometry.layers if y.bank == bank.bank)
        assert geometry.minimum_slots(bank.bank) <= placed.slots <= total
        used += placed.slots * bank.slot_bytes
        for plane, offset in zip(bank.planes, placed.plane_offsets, strict=True):
            assert offset % PAGE == 0 and offset >= ends[-1]
            ends.append(offset + placed.slots * plane.row_bytes)
        full = placed.slots == total
        assert full or used <= budget
    assert used <= budget and layout.nbytes >= ends[-1] and layout.generation == 3
    left = budget - used
    assert all(
        placed.slots == sum(y.experts for y in geometry.layers if y.bank == bank.bank) or bank.slot_bytes > left
        for bank, placed in zip(geometry.banks, layout.banks, strict=True)
    )


@given(geometries())
def test_banks_share_in_proportion(geometry: Geometry) -> None:
    """At half of all bytes each bank holds about half of its experts, where its minimum does not say otherwise."""
    layout = make_layout(geometry, max(geometry.minimum_bytes, geometry.expert_bytes // 2), 0)
    ideal = {b.bank: sum(y.experts for y in geometry.layers if y.bank == b.bank) / 2 for b in geometry.banks}
    if all(geometry.minimum_slots(b.bank) <= ideal[b.bank] for b in geometry.banks):
        largest = max(b.slot_bytes for b in geometry.banks)
        for bank, placed in zip(geometry.banks, layout.banks, strict=True):
            assert ideal[bank.bank] - 1 <= placed.slots <= ideal[bank.bank] + 1 + len(geometry.banks) * largest


def test_too_small_a_pool_is_refused_with_the_minimum() -> None:
    """The user is told what the model needs."""
    bank = Bank(0, (Plane("gate.weight", "float32", "float32", (10,)),), PLAIN, PLAIN, PLAIN, (0,))
    geometry = Geometry("f", "t", True, 1, (bank,), (Layer(0, 0, 8, 2),))
    with pytest.raises(BadRequest, match="at least 80 are needed"):
        make_layout(geometry, 79, 0)
    assert make_layout(geometry, 80, 0).banks[0].slots == 2


@pytest.mark.parametrize(
    ("setting", "slots", "kept"),
    [(None, 10, 0), (None, 47, 0), (None, 480, 10), (None, 5000, 20), (4, 11, 1), (4, 99, 4), (0, 99, 0)],
)
def test_the_reserve_never_eats_the_minimum(setting: int | None, slots: int, kept: int) -> None:
    """About 2 % of the bank, at most two tokens' experts of a layer, and never what a token needs."""
    assert reserve_slots(setting, slots, 10, 10_000) == kept


@pytest.mark.parametrize(("slots", "kept"), [(62, 2), (63, 1), (64, 0), (80, 0)])
def test_no_slot_is_kept_for_an_expert_that_does_not_exist(slots: int, kept: int) -> None:
    """A pool that holds every expert evicts none."""
    assert reserve_slots(5, slots, 4, 64) == kept
