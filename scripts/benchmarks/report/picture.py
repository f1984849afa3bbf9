"""The README's first picture: latency against tuning time, stock and tchub, and what tchub gains; for both themes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tchub.cards.theme import LIGHT, STYLE, svg_text

from scripts.benchmarks.tuning.runs import OURS, STOCK

# Of the summaries: (benchmark, key, words).
GAINS = (
    ("tuning", "time_ratio", "less time to stock's latency"),
    ("tuning", "trials_ratio", "fewer trials to stock's latency"),
    ("tuning", "latency_ratio_equal_trials", "faster code, equal trials"),
    ("measure", "rate_ratio", "programs measured a second"),
    ("predict", "llvm_ratio", "candidates scored a second, LLVM"),
    ("predict", "nvidia_ratio", "candidates scored a second, NVIDIA"),
)
# What the drawing itself depends on, besides the figures: raise it when the picture changes its looks.
VERSION = 1

Found = Mapping[str, Mapping[str, Any]]


def curves(found: Found) -> dict[str, dict[str, list[list[float]]]]:
    """Network -> system -> [[seconds, ms]] of the first seed, of networks that both systems tuned."""
    runs: dict[str, dict[str, list[list[float]]]] = {}
    for run in sorted(found["tuning"]["details"]["runs"], key=lambda run: run["seed"]):
        if run["system"] in (STOCK, OURS):
            points = [[seconds, ms] for _, seconds, ms in run["curve"]]
            runs.setdefault(run["network"], {}).setdefault(run["system"], points)
    return {network: both for network, both in runs.items() if len(both) == 2}


def gains(found: Found) -> list[tuple[str, float]]:
    """Words and ratio of every gain that was measured."""
    told = [(words, found.get(name, {}).get("summary", {}).get(key)) for name, key, words in GAINS]
    return [(words, float(value)) for words, value in told if value is not None]


def fingerprint(found: Found) -> str:
    """Changes when the picture's figures do."""
    drawn = json.dumps([VERSION, curves(found), gains(found)], sort_keys=True)
    return hashlib.sha256(drawn.encode()).hexdigest()[:16]


def is_current(path: Path, mark: str) -> bool:
    """Whether the file was drawn from figures of this fingerprint."""
    return path.is_file() and _comment(mark) in path.read_text()


def _comment(mark: str) -> str:
    return f"<!-- figures {mark} -->"


def draw(found: Found) -> str:
    """The picture as SVG text; colours follow the reader's theme."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    panels, bars = curves(found), gains(found)
    with mpl.rc_context(STYLE):
        columns = min(3, len(panels)) or 1
        rows = -(-len(panels) // columns) or 1
        figure: Any = plt.figure(figsize=(11.5, 1.9 + 1.65 * rows), layout="constrained")
        left, right = figure.subfigures(1, 2, width_ratios=(1.75, 1), wspace=0.03)
        for part in (left, right):
            part.set_facecolor("none")
        _draw_curves(left, panels, rows, columns)
        _draw_gains(right, bars)
        text = svg_text(figure)
        plt.close(figure)
    return text.replace("</svg>", f"{_comment(fingerprint(found))}\n</svg>") + "\n"


def _draw_curves(
    part: Any, panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], rows: int, columns: int
) -> None:
    axes = part.subplots(rows, columns, squeeze=False).flat
    for axis, (network, both) in zip(axes, panels.items(), strict=False):
        for system, colour, line in ((STOCK, "stock", (0, (4, 2))), (OURS, "ours", "solid")):
            seconds, ms = zip(*both[system], strict=True)
            axis.step(seconds, ms, where="post", color=LIGHT[colour], linestyle=line, linewidth=1.6)
        axis.set(yscale="log", title=network)
        axis.title.set_fontsize(9)
        axis.axhline(both[STOCK][-1][1], color=LIGHT["soft"], linewidth=0.6, linestyle=":")
        axis.locator_params(axis="x", nbins=4)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter(lambda *_: "")
        axis.grid(axis="y", color=LIGHT["rule"], linewidth=0.6)
    for axis in list(axes)[len(panels) :]:
        axis.set_axis_off()
    part.supylabel("latency, ms", color=LIGHT["soft"], fontsize=9)
    part.supxlabel("seconds of tuning", color=LIGHT["soft"], fontsize=9)
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=LIGHT["ours"], label="tchub"),
        Line2D([], [], color=LIGHT["stock"], linestyle=(0, (4, 2)), label="stock MetaSchedule"),
        Line2D([], [], color=LIGHT["soft"], linewidth=0.6, linestyle=":", label="where stock ends"),
    ]
    part.legend(handles=handles, loc="outside upper left", ncols=3, frameon=False)


def _draw_gains(part: Any, bars: Sequence[tuple[str, float]]) -> None:
    axis = part.subplots()
    names, values = [name for name, _ in bars], [value for _, value in bars]
    colours = [LIGHT["ours" if value >= 1 else "stock"] for value in values]
    axis.barh(range(len(bars)), values, color=colours, height=0.36)
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        axis.text(0, row - 0.3, name, va="bottom", ha="left", color=LIGHT["ink"])
        beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontweight": "bold"}
        axis.annotate(f"{value:.3g}x", (value, row), color=LIGHT["ink"], **beside)
    axis.axvline(1, color=LIGHT["soft"], linewidth=0.8, linestyle=":")
    axis.set(
        xlim=(0, 1.2 * max([*values, 1.0])),
        ylim=(len(bars) - 0.5, -0.75),
        yticks=[],
        title="tchub over stock (1: equal)",
    )
    axis.title.set_fontsize(9)
    axis.spines["left"].set_visible(False)
