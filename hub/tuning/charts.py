"""Small charts as inline SVG, for a report that needs no library and no network to be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 520, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 46


@dataclass(frozen=True)
class Line:
    """A step line: label, points (x, y) with y > 0, and the CSS class that colours it."""

    label: str
    points: Sequence[tuple[float, float]]
    style: str


def _nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    raw = (high - low) / count
    if raw <= 0:  # also where the span is too small for a float to divide
        return [low]
    step = 10 ** floor(log10(raw))
    step *= next(m for m in (1, 2, 5, 10) if m * step >= raw)
    return [step * i for i in range(ceil(low / step), floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    ticks = [m * 10.0**e for e in range(floor(log10(low)) - 1, ceil(log10(high)) + 1) for m in (1, 2, 5)]
    return [t for t in ticks if low * 0.999 <= t <= high * 1.001]


def number(value: float) -> str:
    """At most four digits."""
    return f"{value:.4g}"


def opened(title: str, height: float = HEIGHT) -> str:
    """The start of a chart that is as wide as all others."""
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'


class _Frame:
    """Maps data to the plot area; y is logarithmic or linear from 0."""

    def __init__(self, x_high: float, y_low: float, y_high: float, log_y: bool, x_low: float = 0.0) -> None:
        self.x_low, self.x_high = x_low, x_high if x_high > x_low else x_low + 1.0
        self.log_y = log_y
        self.y_low, self.y_high = (y_low / 1.15, y_high * 1.15) if log_y else (0.0, y_high * 1.08)

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        if self.log_y:
            part = (log10(value) - log10(self.y_low)) / (log10(self.y_high) - log10(self.y_low))
        else:
            part = (value - self.y_low) / (self.y_high - self.y_low)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    def axes(self, x_title: str, y_title: str) -> list[str]:
        """Grid, tick labels and titles."""
        parts = []
        ticks = _log_ticks(self.y_low, self.y_high) if self.log_y else _nice_ticks(self.y_low, self.y_high)
        for tick in ticks:
            y = self.y(tick)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
        base = HEIGHT - BOTTOM
        for tick in _nice_ticks(self.x_low, self.x_high):
            x = self.x(tick)
            parts.append(f'<text class="tick" x="{x:.1f}" y="{base + 17}" text-anchor="middle">{number(tick)}</text>')
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text class="title" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_title)}</text>')
        centre = (TOP + base) / 2
        parts.append(
            f'<text class="title" x="12" y="{centre}" text-anchor="middle" '
            f'transform="rotate(-90 12 {centre})">{escape(y_title)}</text>'
        )
        return parts


def lines(series: Sequence[Line], x_title: str, y_title: str) -> str:
    """Step lines over a logarithmic y axis; the page has the legend. Empty when there is nothing to draw."""
    drawn = [line for line in series if line.points]
    if not drawn:
        return ""
    ys = [y for line in drawn for _, y in line.points]
    frame = _Frame(max(x for line in drawn for x, _ in line.points), min(ys), max(ys), log_y=True)
    parts = [opened(f"{y_title} by {x_title}"), *frame.axes(x_title, y_title)]
    for line in drawn:
        (x0, y0), *rest = line.points
        path = f"M{frame.x(x0):.1f} {frame.y(y0):.1f}"
        path += "".join(f"H{frame.x(x):.1f}V{frame.y(y):.1f}" for x, y in rest)
        parts.append(f'<path class="line {line.style}" d="{path}"><title>{escape(line.label)}</title></path>')
    return "".join([*parts, "</svg>"])


def scatter(points: Sequence[tuple[float, float]], x_title: str, y_title: str) -> str:
    """Points over linear axes, y from 0; empty when there are none."""
    if not points:
        return ""
    xs = [x for x, _ in points]
    margin = 0.03 * ((max(xs) - min(xs)) or 1.0)
    frame = _Frame(max(xs) + margin, 0.0, 1.0, log_y=False, x_low=min(xs) - margin)
    dots = [f'<circle class="dot" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3"/>' for x, y in points]
    return "".join([opened(f"{y_title} by {x_title}"), *frame.axes(x_title, y_title), *dots, "</svg>"])
