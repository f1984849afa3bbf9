"""The figures of a card, painted on a matplotlib figure from the structs of metrics.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .metrics import LatencyCurve, RankingCurves, ScoreLine, TransferScores, TuningCurve
from .theme import LIGHT

_OURS: dict[str, Any] = {"color": LIGHT["ours"], "linewidth": 1.8}
_OTHER: dict[str, Any] = {"color": LIGHT["stock"], "linewidth": 1.5, "linestyle": (0, (4, 2))}
_NOTE: dict[str, Any] = {"color": LIGHT["soft"], "linewidth": 1.0, "linestyle": ":"}
_MARKS = "sD^vPX"
_KNOWN_K = {1: "top1", 5: "top5"}


def draw_scatter(figure: Any, curves: RankingCurves) -> None:
    """Draw a sample of programs: place by score against measured label.

    All points are one path of round strokes without length, which takes a quarter of the bytes of markers.
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
        xlabel="predicted: place within the task (1: ranked first)",
        ylabel="measured: lowest latency / latency",
    )  # fmt: skip
    _grid(axis, "both")


def draw_top_k(figure: Any, curves: RankingCurves, rivals: Sequence[ScoreLine]) -> None:
    """Draw the top-k score against k; baselines where they are known."""
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


def draw_calibration(figure: Any, curves: RankingCurves) -> None:
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


def draw_transfer(figure: Any, rows: Sequence[TransferScores]) -> None:
    """Draw scores on other corpora beside random choice: a row each, the highest pairwise accuracy first."""
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
    axis.scatter(*zip(*chance, strict=True), marker="|", color=LIGHT["stock"], s=50, linewidths=2) if chance else None
    axis.scatter(*zip(*own, strict=True), color=LIGHT["ours"], s=28, zorder=3) if own else None


def draw_tuning(figure: Any, runs: Sequence[TuningCurve]) -> None:
    """Draw the latency of each network against seconds of tuning, one part a network."""
    axes = figure.subplots(1, len(runs), squeeze=False)[0]
    for axis, run in zip(axes, runs, strict=True):
        axis.step(*_steps(run), where="post", label="with this checkpoint", **_OURS)
        if run.rival:
            axis.step(*_steps(run.rival), where="post", label=run.rival.name, **_OTHER)
            axis.axhline(run.rival.ms[-1], **_NOTE)
        axis.set(yscale="log", title=run.network, xlabel="seconds of tuning")
        axis.title.set_fontsize(9)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter(lambda *_: "")
        _grid(axis, "y")
        axis.legend(loc="upper right", frameon=False, fontsize=8)
    axes[0].set_ylabel("latency, ms")


def _steps(curve: LatencyCurve) -> tuple[list[float], list[float]]:
    """Return seconds and milliseconds of the points where the latency changes, and of the last one."""
    points = list(zip(curve.seconds, curve.ms, strict=True))
    changes = [point for point, (_, before) in zip(points[1:-1], points, strict=False) if point[1] != before]
    kept = [points[0], *changes, points[-1]]
    return [seconds for seconds, _ in kept], [ms for _, ms in kept]


def _grid(axis: Any, which: str) -> None:
    axis.grid(axis=which, color=LIGHT["rule"], linewidth=0.6)
    axis.set_axisbelow(True)
