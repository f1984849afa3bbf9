"""The plots of a card as SVG files, drawn from metrics.json and nothing else.

A file ends with a mark: a hash of the figures that it shows and of the drawing itself. By it a file is known to be
current without drawing it again, whatever release of matplotlib drew it, and one that was edited is found.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from .curves import Curves, Tuning, read_curves, read_tuning
from .evaluation import Evaluation, read_evaluation
from .figures import draw_calibration, draw_scatter, draw_top_k, draw_transfer, draw_tuning
from .files import write_text
from .theme import STYLE, svg_text

# What a drawing depends on besides its figures: raise it when the plots change their looks.
REVISION = 3
_TOLD = (1, 5, 10)  # of the top-k curve, in words
_MARK = re.compile(r"<!-- figures ([0-9a-f]{16}) drawing ([0-9a-f]{16}) -->\n</svg>\n\Z")
_SIZE, _TALL = (5.6, 3.4), (5.6, 3.9)  # inches
_ROW, _AROUND = 0.24, 1.0  # inches of a row of the transfer plot, and of what is around them


@dataclass(frozen=True)
class Plot:
    """One plot.

    Attributes:
        file: its name, `scatter.svg`.
        title: a line for its heading; words: what it shows, for those who do not see it.
        figures: the numbers that it is drawn from.
    """

    file: str
    title: str
    words: str
    size: tuple[float, float]
    figures: Any
    paint: Callable[[Any], None]

    @property
    def mark(self) -> str:
        """A hash of the figures."""
        return _digest(json.dumps([REVISION, self.file, self.words, self.figures], sort_keys=True, default=str))

    def is_current(self, path: Path) -> bool:
        """Whether a file was drawn from these figures, and not touched since."""
        if not path.is_file():
            return False
        text = path.read_text(encoding="utf-8")
        found = _MARK.search(text)
        return found is not None and found.groups() == (self.mark, _digest(text[: found.start()]))

    def to_svg(self) -> str:
        """The SVG text; equal figures give equal text."""
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        with mpl.rc_context(STYLE):
            figure = Figure(figsize=self.size, layout="constrained")
            FigureCanvasSVG(figure)
            self.paint(figure)
            text = svg_text(figure)
        said = f"<title>{escape(self.title)}</title>\n<desc>{escape(self.words)}</desc>\n"
        body = text.replace("<metadata>", f"{said}<metadata>", 1).rsplit("</svg>", 1)[0]
        return f"{body}<!-- figures {self.mark} drawing {_digest(body)} -->\n</svg>\n"


def plots_of(metrics: Mapping[str, Any]) -> tuple[Plot, ...]:
    """The plots that metrics.json has figures for, in the order of a card.

    Raises:
        CardError: a field has the wrong type.
    """
    run, curves, tuning = read_evaluation(metrics), read_curves(metrics) or Curves(), read_tuning(metrics)
    possible = (
        _top_k(run, curves) if curves.top_k else None,
        _scatter(curves) if curves.predicted else None,
        _calibration(curves) if curves.calibration else None,
        _transfer(run) if len(run.transfer) > 1 else None,
        _tuning(tuning) if tuning else None,
    )
    return tuple(plot for plot in possible if plot)


def draw(
    metrics: Mapping[str, Any], folder: Path, *, tuning: Sequence[Mapping[str, Any]] | None = None
) -> tuple[str, ...]:
    """Writes the plots of a checkpoint; files that are current are left as they are.

    Args:
        metrics: its metrics.json.
        folder: where the SVG files go; created when needed.
        tuning: rows of the form of `metrics["tuning"]`, in their place.

    Returns:
        The names of the plots' files; () when nothing was measured that could be drawn.

    Raises:
        CardError: a field of the metrics has the wrong type.
        OSError: the folder cannot be written.
    """
    plots = plots_of(metrics if tuning is None else {**metrics, "tuning": tuning})
    for plot in plots:
        if not plot.is_current(folder / plot.file):
            write_text(folder / plot.file, plot.to_svg())
    return tuple(plot.file for plot in plots)


def _top_k(run: Evaluation, curves: Curves) -> Plot:
    words = "; ".join(
        f"k = {row.k}: {row.model:.3f}" + ("" if row.random is None else f", random choice {row.random:.3f}")
        for row in curves.top_k
        if row.k in _TOLD
    )
    rivals = [[line.label, line.top1, line.top5] for line in run.scores if line.key not in ("model", "random")]
    figures = [[asdict(row) for row in curves.top_k], rivals]
    paint = partial(draw_top_k, curves=curves, run=run)
    return Plot("top-k.svg", "Top-k score", f"Top-k score. {words}.", _TALL, figures, paint)


def _scatter(curves: Curves) -> Plot:
    words = (
        f"{len(curves.predicted)} programs: place within the task by the score, against lowest latency of the task / "
        "latency as measured."
    )
    figures = [curves.predicted, curves.measured]
    paint = partial(draw_scatter, curves=curves)
    return Plot("scatter.svg", "Predicted against measured", words, _SIZE, figures, paint)


def _calibration(curves: Curves) -> Plot:
    first, last = curves.calibration[0], curves.calibration[-1]
    words = (
        f"Mean measured label by tenth of the ranking: {first.mean:.3f} in the lowest tenth, {last.mean:.3f} in the "
        f"highest; it rises in {curves.rises} of {len(curves.calibration) - 1} steps."
    )
    figures = [asdict(tenth) for tenth in curves.calibration]
    return Plot("calibration.svg", "Calibration", words, _SIZE, figures, partial(draw_calibration, curves=curves))


def _transfer(run: Evaluation) -> Plot:
    rows = run.transfer
    lost = sum(row.lost for row in rows)
    words = f"Scores on {len(rows)} other corpora beside random choice, which is ahead by a score on {lost} of them."
    size = (6.8, _AROUND + _ROW * len(rows))
    return Plot(
        "transfer.svg", "Other corpora", words, size, [asdict(row) for row in rows], partial(draw_transfer, rows=rows)
    )


def _tuning(runs: Sequence[Tuning]) -> Plot:
    words = "Latency against seconds of tuning. " + "; ".join(
        f"{run.network}: {run.ours[-1][1]:.3g} ms after {run.ours[-1][0]:.3g} s"
        + (f", {run.rival_name} {run.rival[-1][1]:.3g} ms after {run.rival[-1][0]:.3g} s" if run.rival else "")
        for run in runs
    )
    size = (max(3.6, 2.9 * len(runs)), 2.9)
    return Plot(
        "tuning.svg", "Tuning", f"{words}.", size, [asdict(run) for run in runs], partial(draw_tuning, runs=runs)
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
