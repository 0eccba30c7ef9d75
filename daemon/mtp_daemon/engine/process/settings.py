"""The engine's settings, as the front passes them: one JSON object, every knob checked here."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from mtp_daemon.engine.decode.settings import DecodeSettings
from mtp_daemon.engine.depth import DepthSettings
from mtp_daemon.engine.errors import RequestRefused
from mtp_daemon.engine.mtp.hidden import Hidden
from mtp_protocol.ranges import within

HIDDEN = (*get_args(Hidden), "auto")
_DEPTH = {
    "depth_controller": "controller",
    "depth": "depth",
    "max_depth": "max_depth",
    "depth_half_life": "half_life",
    "probe_share": "probe_share",
    "acceptance": "acceptance",
}
_DECODE = {
    "speculation": "speculation",
    "verify_mode": "verify",
    "chunk": "chunk",
    "tau": "tau",
    "width": "width",
    "probe": "probe",
}
_OWN: dict[str, tuple[type, ...]] = {
    "context": (int,),
    "mtp": (bool,),
    "head": (str, type(None)),
    "hidden": (str,),
    "state_dir": (str, type(None)),
    "verify_slots": (bool,),
    "prefetch": (bool,),
    "hints_ahead": (int,),
    "loader_limit_s": (int, float),
}


@dataclass(frozen=True)
class EngineSettings:
    """`context`: the longest prompt and answer together. `mtp` False: the head is not loaded. `loader_limit_s`: how
    long a request waits for a loader to come back. `hints_ahead`: for how many layers ahead experts are guessed.
    Raises ValueError, naming the setting, for a value outside its range.
    """

    decode: DecodeSettings
    depth: DepthSettings
    context: int = 8192
    mtp: bool = True
    head: Path | None = None
    hidden: str = "post_norm"
    state_dir: Path | None = None
    verify_slots: bool = False
    hints_ahead: int = 2
    loader_limit_s: float = 60.0

    def __post_init__(self) -> None:
        within("context", self.context, 1, 1 << 24)
        within("hints_ahead", self.hints_ahead, 0, 8)
        within("loader_limit_s", self.loader_limit_s, 0.1, 1e5)
        if self.hidden not in HIDDEN:
            raise ValueError(f"hidden must be one of {', '.join(HIDDEN)}, not {self.hidden!r}")


def read_settings(text: str) -> EngineSettings:
    """Raises RequestRefused, naming the setting, for one that is unknown, mistyped or out of range."""
    try:
        given: Any = json.loads(text)
    except ValueError as error:
        raise RequestRefused(f"--settings is not JSON: {error}", "bad_request") from error
    if not isinstance(given, dict):
        raise RequestRefused("--settings must be a JSON object", "bad_request")
    known = {*_DEPTH, *_DECODE, *_OWN}
    if unknown := sorted(given.keys() - known):
        raise RequestRefused(f"no such engine setting as {unknown[0]!r}", "bad_request")
    for name, kinds in _OWN.items():
        if name in given and (type(given[name]) not in kinds):
            raise RequestRefused(f"{name} cannot be {given[name]!r}", "bad_request")
    own = {name: given[name] for name in _OWN if name in given}
    if not own.pop("prefetch", True):
        own["hints_ahead"] = 0
    for name in ("head", "state_dir"):
        own[name] = Path(own[name]) if own.get(name) else None
    try:
        depth = DepthSettings(**{field: given[name] for name, field in _DEPTH.items() if name in given})
        return EngineSettings(decode=_decode_settings(given, depth), depth=depth, **own)
    except (TypeError, ValueError) as error:
        raise RequestRefused(str(error), "bad_request") from error


def _decode_settings(given: dict[str, Any], depth: DepthSettings) -> DecodeSettings:
    """The most a round drafts is the controller's business; a constant depth is its own maximum."""
    most = depth.depth if depth.controller == "constant" else depth.max_depth
    chosen = {field: given[name] for name, field in _DECODE.items() if name in given}
    return DecodeSettings(depth=most, **chosen)
