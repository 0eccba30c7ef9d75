"""The constant and heuristic controllers, and the knobs of all."""

import pytest

from mtp_daemon.engine.depth import DepthController, DepthSettings, RoundTimes, make_controller


def after(controller: DepthController, drafted: int, accepted: int) -> int:
    controller.observe(RoundTimes(drafted, accepted, 0.1, 0.1, 0.1, 8, 1))
    return controller.choose(32)


def test_constant_stays() -> None:
    controller = make_controller(DepthSettings(controller="constant", depth=3))
    assert [controller.choose(32), after(controller, 3, 0), after(controller, 3, 3)] == [3, 3, 3]
    assert controller.choose(1) == 1


def test_heuristic_grows_after_full_acceptance_and_shrinks_after_a_miss() -> None:
    controller = make_controller(DepthSettings(controller="heuristic", depth=2, max_depth=4))
    assert [controller.choose(32), after(controller, 2, 2), after(controller, 3, 3)] == [2, 3, 4]
    assert after(controller, 4, 4) == 4, "max_depth holds"
    assert [after(controller, 4, 1), after(controller, 3, 0), after(controller, 2, 0), after(controller, 1, 0)] == [
        3,
        2,
        1,
        1,
    ]


def test_heuristic_learns_nothing_from_a_round_cut_short() -> None:
    """A round that the answer's end cut to one draft, all right, is no full acceptance of depth 3."""
    controller = make_controller(DepthSettings(controller="heuristic", depth=3, max_depth=6))
    assert after(controller, 1, 1) == 3


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"controller": "magic"}, "magic"),
        ({"depth": -1}, "depth"),
        ({"depth": 33}, "depth"),
        ({"max_depth": 99}, "max_depth"),
        ({"half_life": 0.0}, "half_life"),
        ({"probe_share": 0.9}, "probe_share"),
        ({"acceptance": float("nan")}, "acceptance"),
        ({"depth": True}, "depth"),
    ],
)
def test_a_bad_knob_is_named(knobs: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        DepthSettings(**knobs)  # type: ignore[arg-type]
