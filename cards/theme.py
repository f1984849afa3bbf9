"""Theme of all charts: compact SVG of matplotlib figures, in colours that follow the reader's light or dark theme.

Colour-blind readers can distinguish the colours, blue and orange, and each line has its own dashes or markers. Text
stays text, and equal figures give equal bytes.
"""

import io
import re
from typing import Any
from zlib import crc32

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
_DARK = dict(COLOURS.values())
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_COORDINATES = re.compile(r' (?:x|y|d|width|height|transform)="[^"]*"')
_FINE = re.compile(r"-?\d+\.\d{3,}")
_POINT = re.compile(r"M (\S+ \S+) *\nL \1 *\n")
_UNUSED = re.compile(r' transform="rotate\(-0 [^"]*"|(?<=<g) id="[^"]*"|<g id="[^"]*"/>\n')
_STYLED = re.compile(r' style="([^"]*)"')
_COLOUR = re.compile(r"#[0-9a-f]{6}")


def svg_text(figure: Any) -> str:
    """Return a figure that was drawn with `STYLE` as SVG without a date.

    Each distinct style becomes a class whose name is a digest of it, so that one page can hold several charts.
    """
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata=_NO_METADATA)
    text = _COORDINATES.sub(_rounded, _UNUSED.sub("", drawn.getvalue()))
    styles: dict[str, str] = {}

    def classed(match: re.Match[str]) -> str:
        name = f"s{crc32(match[1].encode()):08x}"
        styles[name] = match[1].replace(": ", ":").replace("; ", ";")
        return f' class="{name}"'

    head, tail = _STYLED.sub(classed, text).split("<defs>", 1)
    rules = "".join(f".{name}{{{style}}}\n" for name, style in styles.items())
    coloured = {name: ";".join(part for part in style.split(";") if "#" in part) for name, style in styles.items()}
    dark = "".join(f".{name}{{{_COLOUR.sub(_darkened, style)}}}\n" for name, style in coloured.items() if style)
    theme = f"<style>\n{rules}@media (prefers-color-scheme: dark) {{\n{dark}}}</style>"
    return "\n".join(line.strip() for line in f"{head}{theme}\n<defs>{tail}".splitlines())


def _darkened(colour: re.Match[str]) -> str:
    return _DARK.get(colour[0], colour[0])


def _rounded(attribute: re.Match[str]) -> str:
    """Round coordinates to hundredths of a point: finer ones are invisible, and double the size of the file."""
    text = _FINE.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), attribute[0])
    return _POINT.sub(r"M\1h0\n", text)
