"""Lines in a picture: as SVG written here, as PNG by matplotlib where it is installed. Every command's pictures."""

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from mtp_loader.errors import BadRequest

Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Name to points, in the axes' own units, x rising."""

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#222222", "#ee8866", "#999933")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 440, 60, 190, 40, 50
_TICKS = 5


@dataclass(frozen=True)
class Axis:
    """`unit` follows each number. The axis begins at 0 and ends at `high`; None: at the largest value drawn."""

    label: str
    unit: str = ""
    high: float | None = None


@dataclass(frozen=True)
class Chart:
    title: str
    x: Axis
    y: Axis
    lines: Lines


def draw(path: Path, chart: Chart) -> None:
    """Write the picture. Raises BadRequest as `check_drawable` does."""
    check_drawable(path)
    if path.suffix == ".png":
        _png(path, chart)
    else:
        path.write_text(svg(chart))


def check_drawable(path: Path) -> None:
    """Raises BadRequest where the ending names no kind we draw, or a PNG cannot be drawn here."""
    if path.suffix not in (".svg", ".png"):
        raise BadRequest(f"a picture is .svg or .png, not {path.name!r}")
    if path.suffix == ".png":
        _matplotlib()


def svg(chart: Chart) -> str:
    """The picture as one SVG document, readable without any style sheet."""
    step_x, right = _scale(chart.x, [x for line in chart.lines.values() for x, _ in line])
    step_y, top = _scale(chart.y, [y for line in chart.lines.values() for _, y in line])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(chart.title)}</text>',
    ]
    for value in _ticks(step_y, top):
        y = _at(0.0, value / top)[1]
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}{chart.y.unit}</text>')
    for value in _ticks(step_x, right):
        x = _at(value / right, 0.0)[0]
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 30}" text-anchor="middle">{value:g}{chart.x.unit}</text>')
    axes = f"{chart.x.label}; y: {chart.y.label}"
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 10}">{escape(axes)}</text>')
    for i, (name, points) in enumerate(chart.lines.items()):
        parts += _line(i, name, [_at(x / right, y / top) for x, y in points])
    return "\n".join([*parts, "</svg>", ""])


def _line(number: int, name: str, points: Sequence[tuple[float, float]]) -> list[str]:
    colour: str = _COLOURS[number % len(_COLOURS)]
    placed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    label = _TOP + 14 + 18 * number
    return [
        f'<polyline points="{placed}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points),
        f'<rect x="{_WIDTH - _RIGHT + 14}" y="{label - 9}" width="12" height="4" fill="{colour}"/>',
        f'<text x="{_WIDTH - _RIGHT + 32}" y="{label}">{escape(name)}</text>',
    ]


def _at(x: float, y: float) -> tuple[float, float]:
    """Shares of the axes to a place on the page."""
    return (_LEFT + x * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y * (_HEIGHT - _TOP - _BOTTOM))


def _scale(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """`(step between marks, end of the axis)`: steps of 1, 2 or 5 times a power of ten."""
    end = axis.high if axis.high is not None else max(values, default=0.0)
    end = end if end > 0 else 1.0
    raw = end / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    return step, end if axis.high is not None else step * math.ceil(end / step - 1e-9)


def _ticks(step: float, end: float) -> list[float]:
    return [i * step for i in range(math.floor(end / step + 1e-9) + 1)]


def _matplotlib() -> None:
    try:
        importlib.import_module("matplotlib").use("Agg")
    except ImportError:
        raise BadRequest("PNG needs matplotlib (pip install mtpd[plot]); .svg needs nothing") from None


def _png(path: Path, chart: Chart) -> None:
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(7.6, 4.4), dpi=150)
    for i, (name, points) in enumerate(chart.lines.items()):
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axes.plot(xs, ys, marker="o", label=name, color=_COLOURS[i % len(_COLOURS)])
    names = [f"{a.label},{a.unit}" if a.unit else a.label for a in (chart.x, chart.y)]
    axes.set(title=chart.title, xlabel=names[0], ylabel=names[1], xlim=(0, chart.x.high), ylim=(0, chart.y.high))
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    figure.savefig(path)
    pyplot.close(figure)
