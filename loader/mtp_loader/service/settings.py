"""The loader's settings as the front hands them down, each checked once."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from mtp_loader.errors import BadRequest
from mtp_loader.policy.registry import DEFAULT, NAMES
from mtp_loader.pool.disk_choice import DiskChoice
from mtp_loader.pool.expert_reader import Verify
from mtp_loader.pool.shim import ShimSettings


@dataclass(frozen=True)
class LoaderSettings:
    """What the loader is told at its start.

    `readers` 0: as found for this disk (`fitted`), else by the number of cores, 4 to 8. `reserve` None: by the bank
    (`reserve_slots`). `direct` "on" refuses to start where the page cache cannot be passed by. `prefetch`
    reads ahead into spare slots what is predicted; `state_dir` keeps what the predictor has learned, and `warm_start`
    fills a cold pool from it. `record_routing` is a file that routing is appended to. `pin_share` bounds what pins take
    of a bank. A demand that has waited `demand_limit_s` for a slot or a read fails. `shim` makes the disk slow or
    faulty, for tests and benchmarks.
    """

    readers: int = 0
    direct: Literal["auto", "on", "off"] = "auto"
    widen: bool = False
    policy: str = DEFAULT
    reserve: int | None = None
    verify: Verify = "first"
    prefetch: bool = True
    warm_start: bool = True
    pins: Path | None = None
    pin_share: float = 0.5
    state_dir: Path | None = None
    record_routing: Path | None = None
    head: Path | None = None
    demand_limit_s: float = 300.0
    stop_deadline_s: float = 5.0
    shim: ShimSettings = field(default_factory=ShimSettings)

    def fitted(self, found: DiskChoice) -> "LoaderSettings":
        """With what `mtp-bench io` found for the model's disk, where these settings leave it to us."""
        direct = self.direct if self.direct != "auto" or found.direct else "off"
        return replace(self, readers=self.readers or found.readers, direct=direct)

    @property
    def threads(self) -> int:
        return self.readers or min(8, max(4, os.cpu_count() or 1))


def parse_settings(text: str) -> LoaderSettings:
    """Settings from the front's JSON object; raises BadRequest, naming the setting, for anything it should not hold."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"the loader's settings are not JSON: {error}") from None
    if not isinstance(given, dict):
        raise BadRequest("the loader's settings are not a JSON object")
    values = {name: value for name, value in given.items() if value is not None}
    shim = dict(_mapping("shim", values.pop("shim", {})))
    if delay_ms := values.pop("delay_ms", 0):
        shim["delay_s"] = _number("delay_ms", delay_ms, 0, 1e6) / 1e3
    if gbps := values.pop("disk_gbps", 0):
        shim["gbps"] = gbps
    values.pop("verify_slots", None)  # the engine's side of a debug mode; the pool needs nothing for it
    checked = {name: _checked(name, value) for name, value in values.items()}
    return LoaderSettings(**checked, shim=_shim(shim))


def _checked(name: str, value: Any) -> Any:
    if name not in _CHECKS:
        raise BadRequest(f"the loader has no setting {name!r}")
    return _CHECKS[name](name, value)


def _choice(*choices: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if value not in choices:
            raise BadRequest(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return value

    return check


def _whole(low: int, high: int) -> Callable[[str, Any], Any]:
    return lambda name, value: int(_number(name, value, low, high, whole=True))


def _real(low: float, high: float) -> Callable[[str, Any], Any]:
    return lambda name, value: float(_number(name, value, low, high))


def _number(name: str, value: Any, low: float, high: float, *, whole: bool = False) -> float:
    good = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not good or not low <= value <= high:
        raise BadRequest(f"{name} must be a {'whole ' if whole else ''}number from {low} to {high}, not {value!r}")
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, not {value!r}")
    return value


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{name} must be a path, not {value!r}")
    return Path(value)


def _verify(name: str, value: Any) -> Any:
    return _choice("first", "always")(name, value) if not isinstance(value, bool) else ("first", "always")[value]


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must be an object, not {value!r}")
    return value


def _shim(given: Mapping[str, Any]) -> ShimSettings:
    names = {f.name for f in fields(ShimSettings)}
    if unknown := given.keys() - names:
        raise BadRequest(f"shim has no setting {min(unknown)!r}")
    values = dict(given)
    if "eio" in values:
        values["eio"] = tuple(values["eio"])
    return ShimSettings(**values)


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "readers": _whole(1, 64),
    "direct": _choice("auto", "on", "off"),
    "widen": _flag,
    "policy": _choice(*NAMES),
    "reserve": _whole(0, 1 << 20),
    "verify": _verify,
    "prefetch": _flag,
    "warm_start": _flag,
    "pins": _path,
    "pin_share": _real(0.0, 1.0),
    "state_dir": _path,
    "record_routing": _path,
    "head": _path,
    "demand_limit_s": _real(0.01, 1e6),
    "stop_deadline_s": _real(0.0, 3600.0),
}
