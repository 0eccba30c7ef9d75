"""Every setting of the service, declared once; read from a TOML file and from the command line, which wins.

The file is flat: `name = value`. A setting's owners get it: the front, or a child in its `--settings`.
"""

import argparse
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtp_daemon.errors import UserError
from mtp_daemon.front.metrics_port import place_fault
from mtp_daemon.setting import Owner, Setting, Value
from mtp_daemon.sizes import pool_fault

_F: tuple[Owner, ...] = ("front",)
_L: tuple[Owner, ...] = ("loader",)
_E: tuple[Owner, ...] = ("engine",)
_LE: tuple[Owner, ...] = ("loader", "engine")

WAYS = ("off", "chain", "adaptive", "rescue", "tree", "adaptive+rescue")

SETTINGS: tuple[Setting, ...] = (
    # the service
    Setting("model", str, None, "directory, Hugging Face id in the local cache, or demo", _F, none=True),
    Setting("pool", str, "auto", "memory for experts: 4GiB, 25% of all experts, or auto", _F, check=pool_fault),
    Setting("pressure", str, "auto", "shrink the pool under memory pressure: auto, off, or a PSI file to watch", _F),
    Setting("context", int, 8192, "longest prompt and answer together, in tokens", ("front", "engine"), 16, 1 << 24),
    Setting("max_tokens", int, 512, "an answer's length when the request names none", _F, 0, 1 << 20),
    Setting("max_queue", int, 64, "requests that may wait; more are refused as busy", _F, 1, 10_000),
    Setting("max_prompt_bytes", int, 4 << 20, "longest prompt accepted, in bytes", _F, 1, 15 << 20),
    Setting("max_clients", int, 256, "clients connected at once", _F, 1, 10_000),
    Setting("keep_limit_s", float, 3600.0, "longest a request may be kept for a client that left", _F, 0, 1e7),
    Setting("stop_deadline_s", float, 10.0, "how long a running answer may go on after SIGTERM", _F, 0, 3600),
    # the network: off unless asked for, and never without keys
    Setting("listen", str, None, "also serve at tcp://IP:PORT, to clients with allowed keys (auto: no)", _F, none=True),
    Setting("listen_anywhere", bool, False, "let listen be an address of every network, as 0.0.0.0 is", _F),
    Setting("key_dir", str, None, "where mtpd keygen keeps keys (auto: keys, beside the config file)", _F, none=True),
    Setting("metrics", str, None, "Prometheus text at unix:PATH or 127.0.0.1:PORT (auto: none)", _F, none=True,
            check=place_fault),
    # supervision
    Setting("start_limit_s", float, 120.0, "a child without a word for so long after its start is hung", _F, 1, 1e5),
    Setting("beat_limit_s", float, 10.0, "a child without a beat for so long is hung", _F, 2, 3600),
    Setting("progress_limit_s", float, 120.0, "a busy engine without progress for so long is hung", _F, 2, 1e5),
    Setting("restart_limit", int, 5, "restarts in a row before a child is given up", _F, 0, 100),
    Setting("log_dir", str, None, "where children's output is kept (auto: logs/ in the run directory)", _F, none=True),
    # the loader
    Setting("readers", int, None, "threads that read experts (auto: as mtp-bench io found, else by cores)", _L, 1, 64,
            none=True),
    Setting("direct", str, "auto", "bypass the page cache (auto: yes, unless mtp-bench io found otherwise)", _L,
            choices=("auto", "on", "off")),
    Setting("policy", str, None, "which expert to give up (auto: forecast); all are in mtp-loader replay --help", _L,
            none=True),
    Setting("reserve", int, None, "free slots kept ahead in each bank", _L, 0, 1 << 20, none=True),
    Setting("verify", bool, False, "check every expert's checksum at each read, not at the first only", _L),
    Setting("prefetch", bool, True, "read ahead what the next layers will probably need", _LE),
    Setting("warm_start", bool, True, "fill a cold pool while nothing is asked: all experts, or the likeliest", _L),
    Setting("pins", str, None, "file with experts to hold, as mtp-loader calibrate --write makes it", _L, none=True),
    Setting("pin_share", float, 0.5, "most of a bank that pins may take", _L, 0, 1),
    Setting("demand_limit_s", float, 300.0, "a demand for an expert that has waited so long fails", _L, 0.01, 1e6),
    Setting("state_dir", str, None, "where statistics and pins are kept (auto: the user's own place), or off", _LE,
            none=True),
    Setting("record_routing", str, None, "record routing to this file, for mtp-loader replay", _L, none=True),
    Setting("delay_ms", float, 0.0, "added to each read; for tests and benchmarks", _L, 0, 1e5),
    Setting("disk_gbps", float, None, "slow reads to so many GB/s; for tests and benchmarks", _L, 1e-6, 1e4, none=True),
    # the engine
    Setting("head", str, None, "directory or file with the MTP head, when it is not in the model", _LE, none=True),
    Setting("mtp", bool, True, "draft with the model's MTP head when it has one", _E),
    Setting("speculation", str, "chain", "way to draft", _E, choices=WAYS),
    Setting("verify_mode", str, "auto", "verify as one batch, step by step, or (auto) as one where that is exact", _E,
            choices=("auto", "batch", "step")),
    Setting("depth_controller", str, "cost", "who chooses the depth", _E, choices=("cost", "heuristic", "constant")),
    Setting("acceptance", float, None, "first drafts expected right before any was seen", _E, 0, 1, none=True),
    Setting("depth", int, 2, "tokens drafted a round, where the controller starts", _E, 0, 32),
    Setting("max_depth", int, 4, "most tokens drafted a round", _E, 0, 32),
    Setting("depth_half_life", float, 36.0, "rounds after which an observation counts half", _E, 1, 10_000),
    Setting("probe_share", float, 0.012, "share of time the cost controller may spend on probes", _E, 0, 0.5),
    Setting("tau", float, 0.4, "adaptive: stop drafting where the head's own probability falls below", _E, 0, 1),
    Setting("width", int, 3, "tree: paths drafted at once", _E, 1, 8),
    Setting("probe", bool, False, "count how often the true token is in the head's top 1, 2 and 3", _E),
    Setting("hints_ahead", int, 2, "for how many layers ahead experts are guessed", _E, 0, 8),
    Setting("loader_limit_s", float, 60.0, "how long an answer waits for a loader to come back", _E, 0.1, 1e5),
    Setting("hidden", str, "post_norm", "hidden row the head reads", _E, choices=("post_norm", "pre_norm", "auto")),
    Setting("chunk", int, 512, "tokens read at once during prefill", _E, 1, 1 << 20),
    Setting("verify_slots", bool, False, "hash every slot at use (slow; finds wrong experts)", _LE),
)  # fmt: skip
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


class Settings(dict[str, Any]):
    """Every setting's value by name, defaults filled in. Attribute access: `settings.pool`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def for_child(self, owner: Owner) -> dict[str, Value]:
        """The settings that a child reads; None where it chooses itself."""
        return {s.name: self[s.name] for s in SETTINGS if owner in s.owners}


def load_settings(file: Path | None, given: Mapping[str, Value]) -> Settings:
    """Defaults, then the file's values, then the `given` ones. Raises UserError naming what is wrong and where."""
    chosen = {**(read_file(file) if file is not None else {}), **given}
    settings = Settings({s.name: s.default for s in SETTINGS} | chosen)
    # A constant depth is its own maximum.
    if settings.depth > settings.max_depth and settings.depth_controller != "constant":
        if "depth" in chosen:
            raise UserError(
                f"depth {settings.depth} is more than max_depth {settings.max_depth}: raise max_depth or lower depth"
            )
        settings["depth"] = settings.max_depth
    return settings


def read_file(path: Path) -> dict[str, Value]:
    """The settings in a TOML file; raises UserError for a file that cannot be used, naming the file and the key."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    values = {}
    for key, value in table.items():
        setting = BY_NAME.get(key.replace("-", "_"))
        if setting is None and isinstance(value, dict):
            raise UserError(f"{path}: [{key}] is a table; settings stand at the top of the file, under no [heading]")
        if setting is None:
            raise UserError(f"{path}: there is no setting {key!r}{_nearest(key)}")
        try:
            values[setting.name] = setting.read(value)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
    return values


def _nearest(key: str) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), BY_NAME, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; settings are: {', '.join(BY_NAME)}"


_GROUPS: tuple[tuple[str, str], ...] = (("front", "service"), ("loader", "loader"), ("engine", "engine"))
# What --help shows; the others are for those who know why, and --help-all shows them too.
_COMMON = frozenset(
    {"pool", "context", "max_tokens", "listen", "metrics", "log_dir", "policy", "verify", "prefetch", "pins"}
    | {"state_dir", "head", "mtp", "speculation", "depth", "max_depth"}
)


class _HelpAll(argparse.Action):
    """Prints the help with everything that `hidden` says of flags that --help leaves out."""

    def __init__(self, option_strings: Sequence[str], dest: str, hidden: Mapping[argparse.Action, str]) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help="show every setting, and exit")
        self._hidden = hidden

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for action, text in self._hidden.items():
            action.help = text
        parser.print_help()
        parser.exit()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each setting but `model`, grouped by who reads it; absent flags leave no attribute."""
    hidden: dict[argparse.Action, str] = {}
    parser.add_argument("--help-all", action=_HelpAll, hidden=hidden)
    for owner, title in _GROUPS:
        group = parser.add_argument_group(f"{title} settings (also in the configuration file)")
        for setting in SETTINGS:
            if setting.owners[0] != owner or setting.name == "model":
                continue
            default = "auto" if setting.default is None else str(setting.default).lower()
            values = f"; {setting.range_text}" if setting.kind is not str or setting.choices else ""
            text = f"{setting.help}{values} (default {default})".replace("%", "%%")
            action = group.add_argument(
                setting.flag, metavar=setting.name.upper(), default=argparse.SUPPRESS,
                help=text if setting.name in _COMMON else argparse.SUPPRESS,
            )  # fmt: skip
            if setting.name not in _COMMON:
                hidden[action] = text


def flags_given(args: argparse.Namespace) -> dict[str, Value]:
    """The settings that were on the command line; raises UserError naming the flag."""
    given = {}
    for setting in SETTINGS:
        text = getattr(args, setting.name, None)
        if text is not None:
            given[setting.name] = setting.read_text(text)
    return given
