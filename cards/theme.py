"""How the project's pictures look: SVG text of matplotlib figures, in colours that follow the reader's theme.

The colours are told apart by readers who are colour-blind, too: blue and orange, and each line has its own dashes or
marks. Text stays text, and equal figures give equal bytes.
"""

from __future__ import annotations

import io
import re
from typing import Any

# name -> colour on light paper, colour on dark paper.
COLOURS = {
    "paper": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#656d76", "#8d96a0"),
    "rule": ("#d8dee4", "#2c333b"),
    "ours": ("#0b6e99", "#4fb3d9"),
    "stock": ("#c2571a", "#f0935a"),
}
LIGHT = {name: light for name, (light, _) in COLOURS.items()}
STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "tchub", "font.size": 9, "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial"],
    "text.color": LIGHT["ink"], "axes.labelcolor": LIGHT["soft"], "xtick.color": LIGHT["soft"],
    "ytick.color": LIGHT["soft"], "axes.edgecolor": LIGHT["rule"], "axes.facecolor": "none",
    "figure.facecolor": LIGHT["paper"], "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
_PLACES = re.compile(r' (?:x|y|d)="[^"]*"')
_FINE = re.compile(r"-?\d+\.\d{3,}")


def svg_text(figure: Any) -> str:
    """A figure that was drawn with `STYLE` as SVG without a date, its light colours beside those for a dark page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    rules = "".join(
        f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important }}\n'
        for light, dark in COLOURS.values()
        for kind in ("fill", "stroke")
    )
    theme = f"<style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>"
    head, tail = _PLACES.sub(_rounded, text.getvalue()).split("<defs>", 1)
    return "\n".join(line.strip() for line in f"{head}{theme}\n<defs>{tail}".splitlines())


def _rounded(attribute: re.Match[str]) -> str:
    """Places on the paper to hundredths of a point: what is finer cannot be seen, and doubles the file."""
    return _FINE.sub(lambda number: f"{float(number.group()):.2f}".rstrip("0").rstrip("."), attribute.group())
