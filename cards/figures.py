"""The figures of a card, as matplotlib draws them: each has data, a width, and words that say what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .curves import Curves, Tuning
from .evaluation import Evaluation
from .theme import LIGHT
from .transfer import Transfer

_OURS: dict[str, Any] = {"color": LIGHT["ours"], "linewidth": 1.8}
_OTHER: dict[str, Any] = {"color": LIGHT["stock"], "linewidth": 1.5, "linestyle": (0, (4, 2))}
_NOTE: dict[str, Any] = {"color": LIGHT["soft"], "linewidth": 1.0, "linestyle": ":"}
_MARKS = "sD^vPX"
_KNOWN_K = {1: "top1", 5: "top5"}


def draw_scatter(figure: Any, curves: Curves) -> None:
    """A sample of programs: place by score against measured label."""
    axis = figure.subplots()
    axis.scatter(curves.predicted, curves.measured, s=9, color=LIGHT["ours"], alpha=0.55, linewidths=0)
    axis.set(
        xlim=(0, 1), ylim=(0, 1.03),
        xlabel="predicted: place within the task (1: ranked first)",
        ylabel="measured: lowest latency / latency",
    )  # fmt: skip
    _grid(axis, "both")


def draw_top_k(figure: Any, curves: Curves, run: Evaluation) -> None:
    """The top-k score against k; baselines where they are known."""
    axis = figure.subplots()
    places = {row.k: place for place, row in enumerate(curves.top_k)}
    axis.plot(places.values(), [row.model for row in curves.top_k], marker="o", label="this checkpoint", **_OURS)
    known = [row for row in curves.top_k if row.random is not None]
    if known:
        axis.plot([places[r.k] for r in known], [r.random for r in known], marker="o", label="random choice", **_OTHER)
    rivals = [line for line in run.scores if line.key not in ("model", "random")]
    for line, mark in zip(rivals, _MARKS, strict=False):
        points = [(places[k], getattr(line, key)) for k, key in _KNOWN_K.items() if k in places]
        points = [(place, score) for place, score in points if score is not None]
        if points:
            style = {"s": 26, "facecolors": "none", "edgecolors": LIGHT["soft"], "zorder": 3}
            axis.scatter(*zip(*points, strict=True), marker=mark, label=line.label.split(" (")[0], **style)
    axis.set(
        ylim=(0, 1.03), xlabel="k: programs measured, those ranked highest", ylabel="top-k score (1: the best found)"
    )
    axis.set_xticks(list(places.values()), [str(k) for k in places])
    _grid(axis, "y")
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8)


def draw_calibration(figure: Any, curves: Curves) -> None:
    """The measured label of each tenth of the ranking: mean and spread, beside a perfect ranking's."""
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


def draw_transfer(figure: Any, rows: Sequence[Transfer]) -> None:
    """Scores on other corpora beside random choice: a row each, the highest pairwise accuracy first."""
    ordered = sorted(rows, key=lambda row: row.scores.pairwise or 0.0)
    left, right = figure.subplots(1, 2, sharey=True)
    names = [row.corpus if row.device_learnt is not False else f"{row.corpus} *" for row in ordered]
    for axis, key, title in ((left, "pairwise", "pairwise accuracy"), (right, "top1", "top-1 score")):
        for place, row in enumerate(ordered):
            _pair(axis, place, getattr(row.scores, key), getattr(row.random, key) if row.random else None)
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


def draw_tuning(figure: Any, runs: Sequence[Tuning]) -> None:
    """Latency of the network against seconds of tuning, one part a network."""
    axes = figure.subplots(1, len(runs), squeeze=False)[0]
    for axis, run in zip(axes, runs, strict=True):
        axis.step(*zip(*run.ours, strict=True), where="post", label="with this checkpoint", **_OURS)
        if run.rival:
            axis.step(*zip(*run.rival, strict=True), where="post", label=run.rival_name or "rival", **_OTHER)
            axis.axhline(run.rival[-1][1], **_NOTE)
        axis.set(yscale="log", title=run.network, xlabel="seconds of tuning")
        axis.title.set_fontsize(9)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter(lambda *_: "")
        _grid(axis, "y")
        axis.legend(loc="upper right", frameon=False, fontsize=8)
    axes[0].set_ylabel("latency, ms")


def _pair(axis: Any, place: int, ours: float | None, chance: float | None) -> None:
    """The checkpoint's score and random choice's on one row, joined by a line of the colour of who is ahead."""
    if ours is not None and chance is not None:
        axis.plot([chance, ours], [place, place], color=LIGHT["ours" if ours >= chance else "stock"], linewidth=1.2)
    if chance is not None:
        axis.scatter([chance], [place], marker="|", color=LIGHT["stock"], s=50, linewidths=2)
    if ours is not None:
        axis.scatter([ours], [place], color=LIGHT["ours"], s=28, zorder=3)


def _grid(axis: Any, which: str) -> None:
    axis.grid(axis=which, color=LIGHT["rule"], linewidth=0.6)
    axis.set_axisbelow(True)
