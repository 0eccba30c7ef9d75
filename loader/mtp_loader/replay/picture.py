"""Hit rate over residency, a line a policy: as SVG written here, as PNG by matplotlib where it is installed."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from mtp_loader.errors import BadRequest

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Name to (residency, hit rate) points, shares 0..1, residency rising."""

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#222222", "#ee8866", "#999933")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 440, 60, 150, 40, 50


def draw(path: Path, title: str, curves: Curves) -> None:
    """Raises BadRequest where the file's ending names no kind we draw or PNG cannot be drawn here."""
    if path.suffix == ".svg":
        path.write_text(svg(title, curves))
    elif path.suffix == ".png":
        _png(path, title, curves)
    else:
        raise BadRequest(f"a picture is .svg or .png, not {path.name!r}")


def svg(title: str, curves: Curves) -> str:
    """The picture as one SVG document, readable without any style sheet."""
    right = max((x for points in curves.values() for x, _ in points), default=1.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for step in range(0, 11, 2):
        x, y = _at(right * step / 10, step / 10, right)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{step * 10} %</text>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 30}" text-anchor="middle">{right * step * 10:.0f} %</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 10}">residency (share of all experts); y: hit rate in decode</text>')
    for i, (name, points) in enumerate(curves.items()):
        colour: str = _COLOURS[i % len(_COLOURS)]
        placed = " ".join("{:.1f},{:.1f}".format(*_at(x, y, right)) for x, y in points)
        parts.append(f'<polyline points="{placed}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for share, rate in points:
            x, y = _at(share, rate, right)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        label = _TOP + 14 + 18 * i
        parts.append(f'<rect x="{_WIDTH - _RIGHT + 14}" y="{label - 9}" width="12" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 32}" y="{label}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _at(share: float, rate: float, right: float) -> tuple[float, float]:
    return (
        _LEFT + share / right * (_WIDTH - _LEFT - _RIGHT),
        _HEIGHT - _BOTTOM - rate * (_HEIGHT - _TOP - _BOTTOM),
    )


def _png(path: Path, title: str, curves: Curves) -> None:
    try:
        importlib.import_module("matplotlib").use("Agg")
    except ImportError:
        raise BadRequest("PNG needs matplotlib (pip install mtpd[plot]); .svg needs nothing") from None
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(7.2, 4.4), dpi=150)
    for i, (name, points) in enumerate(curves.items()):
        xs, ys = [x * 100 for x, _ in points], [y * 100 for _, y in points]
        axes.plot(xs, ys, marker="o", label=name, color=_COLOURS[i % len(_COLOURS)])
    axes.set(title=title, xlabel="residency, % of all experts", ylabel="hit rate in decode, %", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path)
    pyplot.close(figure)
