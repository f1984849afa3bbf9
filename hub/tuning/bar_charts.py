"""Bars as inline SVG: latencies with their spread, seconds by phase, programs by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .charts import WIDTH, number, opened

LABEL, ROW = 170, 34
# A bar so many times as long as the next is cut, or nothing could be told of the others.
CUT = 4.0


@dataclass(frozen=True)
class Bar:
    """A bar with a spread: label, median, first and third quartile, CSS class."""

    label: str
    value: float
    low: float
    high: float
    style: str


@dataclass(frozen=True)
class Stack:
    """Parts laid end to end: label, and (value, CSS class) of each part."""

    label: str
    parts: Sequence[tuple[float, str]]

    @property
    def total(self) -> float:
        """Length of the whole."""
        return sum(value for value, _ in self.parts)


def _label(text: str, y: float, width: float = LABEL, letters: int = 40) -> str:
    short = text if len(text) <= letters else text[: letters - 1] + "…"
    title = f"<title>{escape(text)}</title>" if short != text else ""
    return f'<text class="tick" x="{width - 8:g}" y="{y:g}" text-anchor="end">{escape(short)}{title}</text>'


def _shown(values: Sequence[float]) -> float:
    """The value at which bars end: the largest, unless it would dwarf all others."""
    *_, second, largest = [0.0, *sorted(values)]
    return second * 1.4 if second > 0 and largest > CUT * second else largest


def bars(items: Sequence[Bar], title: str, unit: str = "ms") -> str:
    """Horizontal bars with quartile whiskers and their numbers, one too long cut; empty when there are none."""
    if not items:
        return ""
    height, room = ROW * len(items) + 28, WIDTH - LABEL - 84
    limit = max(_shown([item.value for item in items]), 1e-300)
    scale = room / max(limit, *(item.high for item in items if item.high <= CUT * limit), 1e-300)
    parts = [opened(title, height)]
    for row, item in enumerate(items):
        y, cut = 8 + ROW * row, item.value > limit
        length = room if cut else max(1.0, item.value * scale)
        end, low, high = (LABEL + min(x, room) for x in (length, item.low * scale, item.high * scale))
        parts.append(
            f'{_label(item.label, y + 16)}<rect class="bar {item.style}" x="{LABEL}" y="{y}" width="{length:.1f}" '
            f'height="22"/>'
        )
        if cut:
            parts.append(f'<path class="cut" d="M{end - 26:.1f} {y + 26}l8 -30M{end - 20:.1f} {y + 26}l8 -30"/>')
        else:
            parts.append(f'<line class="axis" x1="{low:.1f}" x2="{high:.1f}" y1="{y + 11}" y2="{y + 11}"/>')
        at = (end if cut else max(end, high)) + 6
        parts.append(f'<text class="tick" x="{at:.1f}" y="{y + 16}">{number(item.value)} {unit}</text>')
    parts.append(f'<text class="title" x="{LABEL}" y="{height - 6}">{escape(title)}; line: quartiles</text>')
    return "".join([*parts, "</svg>"])


def stacks(items: Sequence[Stack], title: str, unit: str = "s") -> str:
    """Horizontal bars of several parts with their totals; empty when there is nothing to draw."""
    longest = max((item.total for item in items), default=0.0)
    if longest <= 0:
        return ""
    height, scale = ROW * len(items) + 28, (WIDTH - LABEL - 84) / longest
    parts = [opened(title, height)]
    for row, item in enumerate(items):
        y, x = 8 + ROW * row, float(LABEL)
        parts.append(_label(item.label, y + 16))
        for value, style in item.parts:
            said = f"<title>{style}: {number(value)} {unit}</title>"
            parts.append(
                f'<rect class="bar {style}" x="{x:.1f}" y="{y}" width="{value * scale:.1f}" height="22">{said}</rect>'
            )
            x += value * scale
        parts.append(f'<text class="tick" x="{x + 6:.1f}" y="{y + 16}">{number(round(item.total, 1))} {unit}</text>')
    parts.append(f'<text class="title" x="{LABEL}" y="{height - 6}">{escape(title)}</text>')
    return "".join([*parts, "</svg>"])


def groups(rows: Sequence[tuple[str, Sequence[tuple[float, str]]]], title: str) -> str:
    """For each label several thin bars, (value, CSS class) each, with their numbers; empty when there are none."""
    longest = max((value for _, bars_ in rows for value, _ in bars_), default=0.0)
    if longest <= 0:
        return ""
    label, thin = 200, 11
    tall = 8 + thin * max(len(bars_) for _, bars_ in rows)
    height, scale = tall * len(rows) + 26, (WIDTH - label - 44) / longest
    parts = [opened(title, height)]
    for row, (name, bars_) in enumerate(rows):
        top = 4 + tall * row
        parts.append(_label(name, top + tall / 2, label, letters=21))
        for place, (value, style) in enumerate(bars_):
            y, width = top + thin * place, value * scale
            parts.append(
                f'<rect class="bar {style}" x="{label}" y="{y}" width="{width:.1f}" height="{thin - 2}"/>'
                f'<text class="small" x="{label + width + 5:.1f}" y="{y + 8.5}">{number(value)}</text>'
            )
    parts.append(f'<text class="title" x="{label}" y="{height - 6}">{escape(title)}</text>')
    return "".join([*parts, "</svg>"])
