"""The plots of a card as SVG files, drawn from metrics.json alone.

A file ends with two digests: of the figures that it shows, and of the drawing itself. They tell that a file is current
without drawing it again, whatever release of matplotlib drew it, and they find one that was edited.
"""

from __future__ import annotations

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
from .figures import draw_calibration, draw_scatter, draw_top_k, draw_transfer, draw_tuning
from .metrics import CardMetrics, LatencyCurve, RankingCurves, TransferScores, TuningCurve, read_metrics
from .theme import STYLE, svg_text

# A drawing depends on this besides its figures: raise it when the plots change their looks.
REVISION = 4
_DESCRIBED_K = (1, 5, 10)
_DIGESTS = re.compile(r"<!-- figures ([0-9a-f]{16}) drawing ([0-9a-f]{16}) -->\n</svg>\n\Z")
_SIZE, _TALL = (5.6, 3.4), (5.6, 3.9)  # inches
_ROW, _AROUND = 0.24, 1.0  # inches of a row of the transfer plot, and of what is around them


@dataclass(frozen=True)
class Plot:
    """One plot.

    Attributes:
        file: its name, `scatter.svg`.
        title: a line for its heading; description: the same facts in words, for those who do not see it.
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
    """Return the plots that metrics.json has figures for, in the order of a card.

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
    """Write the plots of a checkpoint into a folder; files that are current are left as they are.

    Returns:
        The names of the plots' files; () when nothing was measured that could be drawn.

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
    paint = partial(draw_top_k, curves=curves, rivals=rivals)
    return Plot("top-k.svg", "Top-k score", f"Top-k score. {description}.", _TALL, figures, paint)


def _scatter(curves: RankingCurves) -> Plot:
    description = (
        f"{len(curves.scatter.predicted)} programs: place within the task by the score, against lowest latency of the "
        "task / latency as measured."
    )
    paint = partial(draw_scatter, curves=curves)
    return Plot("scatter.svg", "Predicted against measured", description, _SIZE, curves.scatter, paint)


def _calibration(curves: RankingCurves) -> Plot:
    first, last = curves.calibration[0], curves.calibration[-1]
    description = (
        f"Mean measured label by tenth of the ranking: {first.mean:.3f} in the lowest tenth, {last.mean:.3f} in the "
        f"highest; it rises in {curves.rises} of {len(curves.calibration) - 1} steps."
    )
    paint = partial(draw_calibration, curves=curves)
    return Plot("calibration.svg", "Calibration", description, _SIZE, curves.calibration, paint)


def _transfer(rows: Sequence[TransferScores]) -> Plot:
    lost = sum(row.lost for row in rows)
    description = (
        f"Scores on {len(rows)} other corpora beside random choice, which is ahead by a score on {lost} of them."
    )
    size = (6.8, _AROUND + _ROW * len(rows))
    return Plot("transfer.svg", "Other corpora", description, size, rows, partial(draw_transfer, rows=rows))


def _tuning(runs: Sequence[TuningCurve]) -> Plot:
    def at_end(curve: LatencyCurve) -> str:
        seconds, ms = curve.end
        return f"{ms:.3g} ms after {seconds:.3g} s"

    description = "Latency against seconds of tuning. " + "; ".join(
        f"{run.network}: {at_end(run)}" + (f", {run.rival.name} {at_end(run.rival)}" if run.rival else "")
        for run in runs
    )
    size = (max(3.6, 2.9 * len(runs)), 2.9)
    return Plot("tuning.svg", "Tuning", f"{description}.", size, runs, partial(draw_tuning, runs=runs))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
