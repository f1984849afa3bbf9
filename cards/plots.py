"""The plots of a card as SVG files, drawn from metrics.json alone.

A file ends with two digests: one of its figures, and one of the drawing. They show whether a file is current without
drawing it again, whatever release of matplotlib drew it. They also reveal an edited file.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import msgspec

from ..zoo.files import write_atomically
from .metrics import CardMetrics, LatencyCurve, RankingCurves, ScoreLine, TransferScores, TuningCurve, read_metrics
from .theme import LIGHT, STYLE, svg_text

# Part of each digest of figures: raise it when the looks of the plots change.
REVISION = 4
_DESCRIBED_K = (1, 5, 10)
_DIGESTS = re.compile(r"<!-- figures ([0-9a-f]{16}) drawing ([0-9a-f]{16}) -->\n</svg>\n\Z")
_SIZE, _TALL = (5.6, 3.4), (5.6, 3.9)  # inches
_ROW, _AROUND = 0.24, 1.0  # inches: one row of the transfer plot; everything around the rows
_OURS: dict[str, Any] = {"color": LIGHT["ours"], "linewidth": 1.8}
_OTHER: dict[str, Any] = {"color": LIGHT["stock"], "linewidth": 1.5, "linestyle": (0, (4, 2))}
_NOTE: dict[str, Any] = {"color": LIGHT["soft"], "linewidth": 1.0, "linestyle": ":"}
_MARKS = "sD^vPX"
_KNOWN_K = {1: "top1", 5: "top5"}


@dataclass(frozen=True)
class Plot:
    """One plot.

    Attributes:
        file: its name, `scatter.svg`.
        title: its heading, one line; description: its facts as text, for readers who cannot see it.
        figures: the numbers that it is drawn from.
    """

    file: str
    title: str
    description: str
    size: tuple[float, float]
    figures: Any
    paint: Callable[[Any], None]

    @property
    def digest(self) -> str:
        """A digest of the figures."""
        facts = [REVISION, self.file, self.description, msgspec.to_builtins(self.figures)]
        return _digest(json.dumps(facts, sort_keys=True))

    def is_current(self, path: Path) -> bool:
        """Return whether a file was drawn from these figures, and not edited since."""
        if not path.is_file():
            return False
        text = path.read_text(encoding="utf-8")
        match = _DIGESTS.search(text)
        return match is not None and match.groups() == (self.digest, _digest(text[: match.start()]))

    def to_svg(self) -> str:
        """Return the SVG text; equal figures give equal text."""
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        with mpl.rc_context(STYLE):
            figure = Figure(figsize=self.size, layout="constrained")
            FigureCanvasSVG(figure)
            self.paint(figure)
            text = svg_text(figure)
        head = f"<title>{escape(self.title)}</title>\n<desc>{escape(self.description)}</desc>\n"
        body = text.replace("<style>", f"{head}<style>", 1).rsplit("</svg>", 1)[0]
        return f"{body}<!-- figures {self.digest} drawing {_digest(body)} -->\n</svg>\n"


def plots_of(metrics: Mapping[str, Any]) -> tuple[Plot, ...]:
    """Return the plots for which metrics.json has figures, in the order of a card.

    Raises:
        CardError: a field has the wrong type.
    """
    run = read_metrics(metrics)
    curves = run.curves or RankingCurves()
    possible = (
        _top_k(run, curves) if curves.top_k else None,
        _scatter(curves) if curves.scatter.predicted else None,
        _calibration(curves) if curves.calibration else None,
        _transfer(run.transfer) if len(run.transfer) > 1 else None,
        _tuning(run.tuning) if run.tuning else None,
    )
    return tuple(plot for plot in possible if plot)


def draw(metrics: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """Write the plots of a checkpoint into a folder; current files stay as they are.

    Returns:
        The names of the plots' files; () if the metrics have no figures to draw.

    Raises:
        CardError: a field of the metrics has the wrong type.
        OSError: the folder cannot be written.
    """
    plots = plots_of(metrics)
    for plot in plots:
        if not plot.is_current(folder / plot.file):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / plot.file, plot.to_svg().encode())
    return tuple(plot.file for plot in plots)


def _top_k(run: CardMetrics, curves: RankingCurves) -> Plot:
    description = "; ".join(
        f"k = {row.k}: {row.model:.3f}" + ("" if row.random is None else f", random choice {row.random:.3f}")
        for row in curves.top_k
        if row.k in _DESCRIBED_K
    )
    rivals = [line for line in run.scores if line.key not in ("model", "random")]
    figures = [curves.top_k, [[line.label, line.value("top1"), line.value("top5")] for line in rivals]]
    paint = partial(_draw_top_k, curves=curves, rivals=rivals)
    return Plot("top-k.svg", "Top-k score", f"Top-k score. {description}.", _TALL, figures, paint)


def _scatter(curves: RankingCurves) -> Plot:
    description = (
        f"{len(curves.scatter.predicted)} programs: rank within the task by score, against measured lowest latency of "
        "the task / latency."
    )
    paint = partial(_draw_scatter, curves=curves)
    return Plot("scatter.svg", "Predicted against measured", description, _SIZE, curves.scatter, paint)


def _calibration(curves: RankingCurves) -> Plot:
    first, last = curves.calibration[0], curves.calibration[-1]
    description = (
        f"Mean of lowest latency / latency by tenth of the ranking: {first.mean:.3f} in the lowest, {last.mean:.3f} in "
        f"the highest tenth; it rises in {curves.rises} of {len(curves.calibration) - 1} steps."
    )
    paint = partial(_draw_calibration, curves=curves)
    return Plot("calibration.svg", "Calibration", description, _SIZE, curves.calibration, paint)


def _transfer(rows: Sequence[TransferScores]) -> Plot:
    lost = sum(row.lost for row in rows)
    description = (
        f"Scores on {len(rows)} other corpora, beside random choice, which is ahead in a score on {lost} of them."
    )
    size = (6.8, _AROUND + _ROW * len(rows))
    return Plot("transfer.svg", "Other corpora", description, size, rows, partial(_draw_transfer, rows=rows))


def _tuning(runs: Sequence[TuningCurve]) -> Plot:
    def at_end(curve: LatencyCurve) -> str:
        seconds, ms = curve.end
        return f"{ms:.3g} ms after {seconds:.3g} s"

    description = "Latency against seconds of tuning. " + "; ".join(
        f"{run.network}: {at_end(run)}" + (f", {run.rival.name} {at_end(run.rival)}" if run.rival else "")
        for run in runs
    )
    size = (max(3.6, 2.9 * len(runs)), 2.9)
    return Plot("tuning.svg", "Tuning", f"{description}.", size, runs, partial(_draw_tuning, runs=runs))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Painting


def _draw_scatter(figure: Any, curves: RankingCurves) -> None:
    """Draw a sample of programs: rank by score against measured label.

    All points are one path of round strokes of length 0, which takes a quarter of the bytes of markers.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    axis = figure.subplots()
    points = [point for point in zip(curves.scatter.predicted, curves.scatter.measured, strict=True) for _ in range(2)]
    path = Path(points, [Path.MOVETO, Path.LINETO] * (len(points) // 2))
    path.should_simplify = False
    axis.add_patch(
        PathPatch(path, fill=False, edgecolor=LIGHT["ours"], linewidth=3, alpha=0.55, capstyle="round", zorder=2)
    )
    axis.set(
        xlim=(0, 1), ylim=(0, 1.03),
        xlabel="predicted: rank within the task (1: ranked first)",
        ylabel="measured: lowest latency / latency",
    )  # fmt: skip
    _grid(axis, "both")


def _draw_top_k(figure: Any, curves: RankingCurves, rivals: Sequence[ScoreLine]) -> None:
    """Draw the top-k score against k, with the known scores of the baselines."""
    axis = figure.subplots()
    columns = {row.k: column for column, row in enumerate(curves.top_k)}
    axis.plot(columns.values(), [row.model for row in curves.top_k], marker="o", label="this checkpoint", **_OURS)
    known = [row for row in curves.top_k if row.random is not None]
    if known:
        axis.plot([columns[r.k] for r in known], [r.random for r in known], marker="o", label="random choice", **_OTHER)
    for line, mark in zip(rivals, _MARKS, strict=False):
        points = [(columns[k], line.value(key)) for k, key in _KNOWN_K.items() if k in columns]
        points = [(column, score) for column, score in points if score is not None]
        if points:
            style = {"s": 26, "facecolors": "none", "edgecolors": LIGHT["soft"], "zorder": 3}
            axis.scatter(*zip(*points, strict=True), marker=mark, label=line.label.split(" (")[0], **style)
    axis.set(
        ylim=(0, 1.03), xlabel="k: programs measured, those ranked highest", ylabel="top-k score (1: the best found)"
    )
    axis.set_xticks(list(columns.values()), [str(k) for k in columns])
    _grid(axis, "y")
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8)


def _draw_calibration(figure: Any, curves: RankingCurves) -> None:
    """Draw the measured label of each tenth of the ranking: mean and spread, beside a perfect ranking's."""
    axis = figure.subplots()
    middles = [(tenth.least + tenth.most) / 2 for tenth in curves.calibration]
    means = [tenth.mean for tenth in curves.calibration]
    spread = [tenth.stdev for tenth in curves.calibration]
    axis.fill_between(
        middles,
        [max(0, mean - by) for mean, by in zip(means, spread, strict=True)],
        [min(1, mean + by) for mean, by in zip(means, spread, strict=True)],
        color=LIGHT["ours"], alpha=0.18, linewidth=0, label="± one standard deviation",
    )  # fmt: skip
    axis.plot(middles, means, marker="o", label="this checkpoint", **_OURS)
    known = [
        (middle, t.perfect) for middle, t in zip(middles, curves.calibration, strict=True) if t.perfect is not None
    ]
    if known:
        axis.plot(*zip(*known, strict=True), label="a perfect ranking", **_OTHER)
    axis.set(
        xlim=(0, 1), ylim=(0, 1.03), xlabel="tenth of the ranking (right: ranked fastest)",
        ylabel="measured: lowest latency / latency",
    )  # fmt: skip
    _grid(axis, "y")
    axis.legend(loc="lower right", frameon=False, fontsize=8)


def _draw_transfer(figure: Any, rows: Sequence[TransferScores]) -> None:
    """Draw scores on other corpora beside random choice: one row each, the highest pairwise accuracy on top."""
    ordered = sorted(rows, key=lambda row: row.scores.value("pairwise") or 0.0)
    left, right = figure.subplots(1, 2, sharey=True)
    names = [row.corpus if row.device_learnt is not False else f"{row.corpus} *" for row in ordered]
    for axis, key, title in ((left, "pairwise", "pairwise accuracy"), (right, "top1", "top-1 score")):
        ours = [row.scores.value(key) for row in ordered]
        random = [(row.random or ScoreLine()).value(key) for row in ordered]
        _pairs(axis, ours, random)
        axis.set(xlim=(0, 1.03), ylim=(-0.6, len(ordered) - 0.4), xlabel=title)
        _grid(axis, "x")
    left.set_yticks(range(len(names)), names)
    right.tick_params(left=False)
    handles = [
        left.scatter([], [], color=LIGHT["ours"], s=28, label="this checkpoint"),
        left.scatter([], [], marker="|", color=LIGHT["stock"], s=50, linewidths=2, label="random choice"),
    ]
    if names != [row.corpus for row in ordered]:
        handles.append(left.scatter([], [], marker="$*$", color=LIGHT["soft"], s=20, label="device not learnt"))
    figure.legend(handles=handles, loc="outside upper left", ncols=3, frameon=False, fontsize=8)


def _pairs(axis: Any, ours: Sequence[float | None], random: Sequence[float | None]) -> None:
    """Draw a score and random choice's on each row, joined by a line in the colour of the higher one."""
    both = [(r, a, b) for r, (a, b) in enumerate(zip(ours, random, strict=True)) if a is not None and b is not None]
    for colour, joined in (("ours", [p for p in both if p[1] >= p[2]]), ("stock", [p for p in both if p[1] < p[2]])):
        axis.hlines([p[0] for p in joined], [p[1] for p in joined], [p[2] for p in joined], LIGHT[colour], lw=1.2)
    chance = [(score, row) for row, score in enumerate(random) if score is not None]
    own = [(score, row) for row, score in enumerate(ours) if score is not None]
    if chance:
        axis.scatter(*zip(*chance, strict=True), marker="|", color=LIGHT["stock"], s=50, linewidths=2)
    if own:
        axis.scatter(*zip(*own, strict=True), color=LIGHT["ours"], s=28, zorder=3)


def _draw_tuning(figure: Any, runs: Sequence[TuningCurve]) -> None:
    """Draw the latency of each network against seconds of tuning, one part for each network."""
    axes = figure.subplots(1, len(runs), squeeze=False)[0]
    for axis, run in zip(axes, runs, strict=True):
        axis.step(run.seconds, run.ms, where="post", label="with this checkpoint", **_OURS)
        if run.rival:
            axis.step(run.rival.seconds, run.rival.ms, where="post", label=run.rival.name, **_OTHER)
            axis.axhline(run.rival.ms[-1], **_NOTE)
        axis.set(yscale="log", title=run.network, xlabel="seconds of tuning")
        axis.title.set_fontsize(9)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter(lambda *_: "")
        _grid(axis, "y")
        axis.legend(loc="upper right", frameon=False, fontsize=8)
    axes[0].set_ylabel("latency, ms")


def _grid(axis: Any, which: str) -> None:
    axis.grid(axis=which, color=LIGHT["rule"], linewidth=0.6)
    axis.set_axisbelow(True)
