"""One request's state, owned by its decoder on the MLX thread."""

from dataclasses import dataclass
from typing import Any

from mtp_daemon.engine.decode.gated_delta import recording_deltas
from mtp_daemon.engine.decode.rollback import one_at_a_time, side_by_side, with_delta_caches
from mtp_daemon.engine.decode.settings import DecodeSettings
from mtp_daemon.engine.decode.target import Target
from mtp_daemon.engine.errors import RequestRefused
from mtp_daemon.engine.mtp.track import HeadTrack
from mtp_daemon.engine.sampling import Chooser


@dataclass
class RequestState:
    """Between rounds the caches hold all of `history` but its last token, which the next round feeds.

    `step_why` says why a verify must go position by position (None: it need not); `plain_why` why nothing is drafted.
    `broken`: an error left the caches between two positions, and only `close` is of use.
    """

    target: Target
    settings: DecodeSettings
    chooser: Chooser
    history: list[int]
    caches: list[Any]
    head: HeadTrack | None
    step_why: str | None
    plain_why: str | None
    broken: bool = False

    @property
    def batch(self) -> bool:
        """A verify goes in one forward."""
        return self.step_why is None

    @property
    def side_by_side(self) -> bool:
        """Several paths can be verified as rows of one batch."""
        return side_by_side(self.caches)


def new_request(
    target: Target, settings: DecodeSettings, chooser: Chooser, history: list[int], scripted: bool
) -> RequestState:
    """`scripted`: drafts come from somewhere else than the head."""
    caches = with_delta_caches(target.trunk.make_cache(), recording_deltas(target.trunk.model))
    plain_why = None if scripted or target.head is not None else (target.head_why or "the model has no MTP head")
    if settings.speculation == "off":
        plain_why = "speculation is off"
    step_why = "verify_mode = step" if settings.verify == "step" else None
    try:
        step_why = step_why or one_at_a_time(caches) or _two_paths(target)
    except RequestRefused as refusal:
        plain_why = plain_why or str(refusal)
    if step_why and settings.verify == "batch" and plain_why is None:
        raise RequestRefused(f"verify_mode = batch is not exact here: {step_why}")
    head = None
    if plain_why is None and target.head is not None:
        head = HeadTrack(target.head, target.trunk, target.stream)
    return RequestState(target, settings, chooser, history, caches, head, step_why, plain_why)


def _two_paths(target: Target) -> str | None:
    """deepseek_v3 and its kin absorb the key projection for a single token only: other bits than in a batch."""
    attention = getattr(target.trunk.layers[0], "self_attn", None)
    return "a single token takes another attention path in this model" if hasattr(attention, "embed_q") else None
