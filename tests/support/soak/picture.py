"""The soak as one SVG: tokens a second, hit rate, stall and memory over time, with a line where something was done."""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from support.soak.samples import Samples

_WIDTH, _LEFT, _RIGHT, _TOP, _PANEL, _GAP = 900, 70, 120, 40, 130, 36
_COLOURS = {"front": "#228833", "engine": "#4477aa", "loader": "#ee6677"}
_PLAIN = "#4477aa"
Points = Sequence[tuple[float, float]]


def draw(path: Path, title: str, samples: Samples) -> None:
    """Write the picture; it needs no style sheet."""
    panels: list[tuple[str, list[tuple[str, str, Points]]]] = [
        ("tokens a second", [("", _PLAIN, list(zip(samples.times, samples.tok_per_s, strict=True)))]),
        ("hit rate of answers, %", [("", _PLAIN, _percent(samples.times, samples.hit_rate))]),
        ("waiting for experts, % of an answer's time", [("", _PLAIN, _percent(samples.times, samples.stall))]),
        ("resident memory, MB", _memory(samples)),
    ]
    last = max(samples.times, default=1.0)
    height = _TOP + len(panels) * (_PANEL + _GAP) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for number, (name, lines) in enumerate(panels):
        parts += _panel(_TOP + 14 + number * (_PANEL + _GAP), name, lines, last, samples.marks)
    bottom = _TOP + 14 + (len(panels) - 1) * (_PANEL + _GAP) + _PANEL
    for step in range(7):
        x = _x(last * step / 6, last)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{last * step / 360:.1f} min</text>')
    for number, (role, colour) in enumerate(_COLOURS.items()):
        y = bottom - _PANEL + 14 + 18 * number
        parts.append(f'<rect x="{_WIDTH - _RIGHT + 14}" y="{y - 8}" width="12" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 32}" y="{y}">{role}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]))


def _panel(
    top: int, name: str, lines: list[tuple[str, str, Points]], last: float, marks: Sequence[tuple[float, str]]
) -> list[str]:
    most = max((y for _, _, points in lines for _, y in points), default=1.0) or 1.0
    right, bottom = _WIDTH - _RIGHT, top + _PANEL
    parts = [f'<text x="{_LEFT}" y="{top - 4}">{escape(name)}</text>']
    for at, what in marks:
        x, colour = _x(at, last), "#cc3311" if what.startswith("kill") else "#bbbbbb"
        parts.append(
            f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}" stroke-width="0.6">'
            f"<title>{escape(what)}</title></line>"
        )
    for step in range(3):
        y = bottom - _PANEL * step / 2
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most * step / 2:.3g}</text>')
    for _label, colour, points in lines:
        placed = " ".join(f"{_x(x, last):.1f},{bottom - _PANEL * y / most:.1f}" for x, y in points)
        parts.append(f'<polyline points="{placed}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
    return parts


def _percent(times: Sequence[float], shares: Sequence[float | None]) -> Points:
    return [(t, 100 * share) for t, share in zip(times, shares, strict=True) if share is not None]


def _memory(samples: Samples) -> list[tuple[str, str, Points]]:
    return [
        (p.role, _COLOURS[p.role], [(t, r / 1e6) for t, r in zip(p.times, p.rss, strict=True)])
        for p in samples.processes.values()
    ]


def _x(at: float, last: float) -> float:
    return _LEFT + at / last * (_WIDTH - _LEFT - _RIGHT)
