"""The CSV of recorded routing that llama.cpp forks write: one row per (token, layer, rank).

Rows: `turn, phase, step, layer, slot, expert, weight, …`; further columns are the recorder's own. Header lines begin
with `#`. The prompt's rows come layer by layer; a replay takes them token by token (step, then layer), as decode does.
"""

import re
from math import isfinite
from pathlib import Path

from mtp_loader.errors import DamagedCheckpoint
from mtp_loader.policy.interface import EXPERT_BITS
from mtp_loader.replay.trace import Forward, LayerFacts, Trace, event_of

_LAYER = re.compile(r"# layer=(\d+) expert_bytes=(\d+)")
_FIELD = re.compile(r"(\w+)=(\S+)")
_Chosen = dict[tuple[int, int, int, int], list[tuple[int, float]]]


def read_csv(path: Path) -> Trace:
    """Raises DamagedCheckpoint, naming the line, where a row is not what it should be."""
    facts: dict[str, str] = {}
    sizes: dict[int, int] = {}
    chosen: _Chosen = {}
    torn = ""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DamagedCheckpoint(path, "is no recording of routing: it is not text") from error
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            if match := _LAYER.match(line):
                sizes[int(match[1])] = int(match[2])
            else:
                facts.update(_FIELD.findall(line))
        elif line and not line.startswith("turn,"):
            try:
                _take(line, chosen)
            except ValueError as error:
                if number < len(lines):
                    raise DamagedCheckpoint(path, f"line {number} is no row of routing") from error
                torn = f"line {number} is cut short and was left out"
    if not chosen or not sizes or "n_expert" not in facts:
        raise DamagedCheckpoint(path, "is no recording of routing: no rows, or no header lines with the experts' bytes")
    if not facts["n_expert"].isascii() or not facts["n_expert"].isdigit():
        raise DamagedCheckpoint(path, f"says n_expert={facts['n_expert'][:40]}, which is no number of experts")
    experts = int(facts["n_expert"])
    top_k = max(map(len, chosen.values()))
    layers = {y: LayerFacts(y, 0, experts, top_k, sizes[y]) for y in sorted(sizes)}
    return Trace(path.name, facts.get("model", ""), layers, _forwards(chosen), torn)


def _take(line: str, chosen: _Chosen) -> None:
    turn, phase, step, layer, _rank, expert, weight = line.split(",")[:7]
    if not 0 <= int(expert) < 1 << EXPERT_BITS or not isfinite(float(weight)):
        raise ValueError
    chosen.setdefault((int(turn), int(step), int(layer), int(phase)), []).append((int(expert), float(weight)))


def _forwards(chosen: _Chosen) -> list[Forward]:
    by_token: dict[tuple[int, int, int], list[tuple[int, list[tuple[int, float]]]]] = {}
    for (turn, step, layer, phase), ranked in sorted(chosen.items()):
        by_token.setdefault((turn, step, phase), []).append((layer, ranked))
    forwards = []
    for (_turn, step, phase), layers in by_token.items():
        rows = tuple((y, (tuple(e for e, _ in ranked),)) for y, ranked in layers)
        events = tuple(event_of(y, [[e for e, _ in ranked]], [[w for _, w in ranked]]) for y, ranked in layers)
        forwards.append(Forward(step, phase, (), events, rows))
    return forwards
