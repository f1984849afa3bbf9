"""The README's first picture: latency against tuning time, a model from nothing and tchub's; for both themes."""

from collections.abc import Mapping, Sequence
from typing import Any

from tchub.cards import Plot
from tchub.cards.theme import LIGHT

from scripts.benchmarks.tuning import OURS, REFERENCE, SYSTEMS

TITLE = f"Latency of whole networks against seconds of tuning: {SYSTEMS[REFERENCE]} and tchub"
# Of the summaries: (benchmark, key, words).
GAINS = (
    ("tuning", "time_ratio_held_out", "less time to XGBoost's latency, unseen networks"),
    ("tuning", "trials_ratio_held_out", "fewer trials to it, unseen networks"),
    ("tuning", "time_ratio_near_held_out", "less time to within 5% of it, unseen networks"),
    ("tuning", "latency_ratio_equal_trials_held_out", "faster code at equal trials, unseen networks"),
    ("measure", "rate_ratio", "programs measured a second"),
    ("predict", "llvm_ratio", "candidates scored a second, LLVM"),
    ("predict", "nvidia_ratio", "candidates scored a second, NVIDIA"),
)
# Latencies that are drawn, over the one that XGBoost ends with: untuned programs are a hundred times slower.
MOST = 6

Results = Mapping[str, Mapping[str, Any]]
Curves = dict[str, dict[str, list[list[float]]]]


def curves(results: Results) -> Curves:
    """Network -> system -> [[seconds, ms]] of the first seed, of networks that both systems tuned."""
    runs: Curves = {}
    for run in sorted(results["tuning"]["details"]["runs"], key=lambda run: run["seed"]):
        if run["system"] in (REFERENCE, OURS):
            points = [[seconds, ms] for _, seconds, ms in run["curve"]]
            runs.setdefault(run["network"], {}).setdefault(run["system"], points)
    return {network: both for network, both in runs.items() if len(both) == 2}


def gains(results: Results) -> list[tuple[str, float]]:
    """Title and ratio of every gain that was measured."""
    known = [(title, results[name]["summary"].get(key)) for name, key, title in GAINS]
    return [(title, float(value)) for title, value in known if value is not None]


def picture(results: Results) -> Plot:
    """The picture; its colours follow the reader's theme. Of an unseen network nothing was learnt."""
    panels, bars = curves(results), gains(results)
    columns = min(5, len(panels)) or 1
    rows = -(-len(panels) // columns) or 1

    def paint(figure: Any) -> None:
        left, right = figure.subfigures(1, 2, width_ratios=(2.4, 1), wspace=0.03)
        for part in (left, right):
            part.set_facecolor("none")
        _draw_curves(left, panels, rows, columns)
        _draw_gains(right, bars)

    described = "; ".join(f"{title}: {value:.3g}x" for title, value in bars)
    return Plot("speed.svg", TITLE, f"{described}.", (13, 1.9 + 1.65 * rows), [panels, bars], paint)


def _draw_curves(part: Any, panels: Curves, rows: int, columns: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator
    from tchub.zoo.corpus import HELD_OUT

    axes = list(part.subplots(rows, columns, squeeze=False).flat)
    lines: dict[str, dict[str, Any]] = {
        OURS: {"color": LIGHT["ours"], "linestyle": "solid", "linewidth": 1.6, "label": "tchub"},
        REFERENCE: {"color": LIGHT["stock"], "linestyle": (0, (4, 2)), "linewidth": 1.6, "label": SYSTEMS[REFERENCE]},
        "end": {"color": LIGHT["soft"], "linestyle": ":", "linewidth": 0.6, "label": "where XGBoost ends"},
    }
    for axis, (network, both) in zip(axes, panels.items(), strict=False):
        for system in (REFERENCE, OURS):
            axis.step(*zip(*both[system], strict=True), where="post", **lines[system])
        end = both[REFERENCE][-1][1]
        axis.axhline(end, **lines["end"])
        axis.set(yscale="log", title=network + ", unseen" * (network in HELD_OUT))
        axis.set_ylim(top=MOST * end)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.title.set_fontsize(9)
        axis.locator_params(axis="x", nbins=4)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter(lambda *_: "")
        axis.grid(axis="y", color=LIGHT["rule"], linewidth=0.6)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    part.supylabel("latency, ms", color=LIGHT["soft"], fontsize=9)
    part.supxlabel("seconds of tuning", color=LIGHT["soft"], fontsize=9)
    handles = [Line2D([], [], **style) for style in lines.values()]
    part.legend(handles=handles, loc="outside upper left", ncols=3, frameon=False)


def _draw_gains(part: Any, bars: Sequence[tuple[str, float]]) -> None:
    axis = part.subplots()
    values = [value for _, value in bars]
    axis.barh(range(len(bars)), values, color=[LIGHT["ours" if v >= 1 else "stock"] for v in values], height=0.36)
    beside: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontweight": "bold"}
    for row, (title, value) in enumerate(bars):
        axis.text(0, row - 0.3, title, va="bottom", ha="left", color=LIGHT["ink"])
        axis.annotate(f"{value:.3g}x", (value, row), color=LIGHT["ink"], **beside)
    axis.axvline(1, color=LIGHT["soft"], linewidth=0.8, linestyle=":")
    limits = {"xlim": (0, 1.2 * max([*values, 1.0])), "ylim": (len(bars) - 0.5, -0.75)}
    axis.set(**limits, yticks=[], title="tchub over MetaSchedule's own (1: equal)")
    axis.title.set_fontsize(9)
    axis.spines["left"].set_visible(False)
