"""The charts of a tuning report, drawn by matplotlib in the theme of the cards, as SVG that stands in the page."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from ...cards.theme import COLOURS, LIGHT, STYLE, svg_text

TITLES = {
    "untuned": "untuned", "pytorch": "PyTorch, eager", "torch.compile": "torch.compile",
    "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "tuned": "tuned", "stock": "tuned, stock model",
}  # fmt: skip
# Tasks in the chart of trials; the table has all.
MOST_TASKS = 28
# A bar so many times as long as the next is cut, or the others could not be read.
CUT = 4.0
_COLOUR = dict.fromkeys(TITLES, "soft") | {"tuned": "ours", "stock": "stock", "untuned": "rule"}
# Parts of the tuning's wall time, in the order in which they are drawn: name, title, colour.
_PHASES = (
    ("search", "search", "ours"), ("model", "cost model", "stock"),
    ("measure", "measuring", "soft"), ("other", "other", "rule"),
)  # fmt: skip

Runs = Mapping[str, Mapping[str, Any]]


def _chart(draw: Callable[..., float]) -> Callable[..., str]:
    """Make a function that draws on axes, and returns the height in inches, one that returns SVG; 0 is no chart."""

    @wraps(draw)
    def drawn(*args: Any) -> str:
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context(STYLE):
            figure = Figure(layout="constrained")
            height = draw(figure.add_subplot(), *args)
            figure.set_size_inches(5.6, height)
            text = svg_text(figure) if height else "<svg"
        return text[text.index("<svg") :].removesuffix("<svg")

    return drawn


@_chart
def curves(axes: Any, runs: Runs, key: str, title: str) -> float:
    """Draw the sum of tasks against trials or seconds (`key` of the curve's points), one step line a run."""
    for label, run in runs.items():
        points = [(float(point[key]), 1e3 * point["latency"]) for point in run["curve"]]
        if run["sum_of_tasks_untuned"] is not None:
            points.insert(0, (0.0, 1e3 * run["sum_of_tasks_untuned"]))
        if points:
            style = {"color": LIGHT[_COLOUR[label]], "linestyle": "--" if label == "stock" else "-"}
            axes.step(*zip(*points, strict=True), where="post", label=name_of(label, run), **style)
    if not axes.lines:
        return 0
    axes.set(xlabel=title, ylabel="ms, sum of tasks", yscale="log")
    axes.grid(color=LIGHT["rule"], axis="y", which="both", linewidth=0.5)
    axes.legend(frameon=False)
    return 3.0


@_chart
def latencies(axes: Any, systems: Mapping[str, Mapping[str, float]]) -> float:
    """Draw the end-to-end latency of each system with its quartiles; a bar that dwarfs the others is cut."""
    if not systems:
        return 0
    medians = [1e3 * facts["median"] for facts in systems.values()]
    *_, second, largest = [0.0, *sorted(medians)]
    cut = second * 1.4 if second and largest > CUT * second else None
    for row, (name, facts) in enumerate(systems.items()):
        low, middle, high = (1e3 * facts[quartile] for quartile in ("first_quartile", "median", "third_quartile"))
        is_cut = cut is not None and middle > cut
        shown = cut if cut is not None and is_cut else middle
        axes.barh(row, shown, color=LIGHT[_COLOUR[name]], hatch="//" if is_cut else None, edgecolor=LIGHT["paper"])
        if not is_cut:
            axes.plot([low, high], [row, row], color=LIGHT["ink"], linewidth=1)
        axes.text(shown if is_cut else max(high, middle), row, f" {middle:.4g} ms", va="center")
    axes.set_yticks(range(len(systems)), [TITLES[name] for name in systems])
    axes.set(xlabel="ms, end to end; line: quartiles" + ("; hatched: cut" if cut is not None else ""))
    axes.invert_yaxis()
    axes.margins(x=0.2)
    return 0.9 + 0.4 * len(systems)


@_chart
def phases(axes: Any, runs: Runs) -> float:
    """Draw the tuning's wall time by phase; what no phase holds (the store, the display) is `other`."""
    rows = []
    for run in runs.values():
        known = {name: run["phases"][name] for name in ("search", "model", "measure")}
        rows.append(known | {"other": max(0.0, run["tuning_seconds"] - sum(known.values()))})
    totals = [sum(row.values()) for row in rows]
    if not any(totals):
        return 0
    left = [0.0] * len(rows)
    for name, title, colour in _PHASES:
        widths = [row[name] for row in rows]
        axes.barh(range(len(rows)), widths, left=left, color=LIGHT[colour], label=title)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for row, total in enumerate(totals):
        axes.text(total, row, f" {total:.4g} s", va="center")
    axes.set_yticks(range(len(rows)), [TITLES[label] for label in runs])
    axes.set(xlabel="seconds of tuning by phase")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    return 1.3 + 0.4 * len(rows)


@_chart
def allocation(axes: Any, runs: Runs) -> float:
    """Draw the programs measured of each task that has a choice, by run; the tasks with most of them."""
    spent: dict[str, dict[str, int]] = {}
    names: dict[str, str] = {}
    for label, run in runs.items():
        for task in run["tasks"]:
            if not task["one_program"]:
                spent.setdefault(task["id"], {})[label] = task["trials"]
                names[task["id"]] = task["name"]
    if not any(count for by_run in spent.values() for count in by_run.values()):
        return 0
    most = set(sorted(spent, key=lambda t: -sum(spent[t].values()))[:MOST_TASKS])
    left, rows = len(spent) - len(most), [task for task in spent if task in most]
    thick = 0.8 / len(runs)
    for number, label in enumerate(runs):
        at = [row + (number - (len(runs) - 1) / 2) * thick for row in range(len(rows))]
        counts = [spent[task].get(label, 0) for task in rows]
        axes.barh(at, counts, height=thick, color=LIGHT[_COLOUR[label]], label=TITLES[label])
    titles = [name if len(name := names[task]) <= 28 else f"{name:.27}…" for task in rows]
    axes.set_yticks(range(len(rows)), titles, fontsize=7)
    axes.set(xlabel="programs measured" + (f"; {left} tasks with fewer left out" if left else ""))
    axes.invert_yaxis()
    return 0.8 + 0.2 * len(rows)


@_chart
def predictions(axes: Any, run: Mapping[str, Any] | None) -> float:
    """Draw scores against speed relative to the best program of the task, of the main run."""
    if run is None:
        return 0
    best = {task["id"]: task["best"] for task in run["tasks"] if not task["one_program"]}
    scored = [p for p in run["programs"] if p["latency"] and p["predicted"] is not None and best.get(p["task"])]
    scores: dict[str, list[float]] = {}
    for program in scored:
        scores.setdefault(program["task"], []).append(program["predicted"])
    points = [
        (p["predicted"] - max(scores[p["task"]]), best[p["task"]] / p["latency"])
        for p in scored
        if len(scores[p["task"]]) > 1
    ]
    if not points:
        return 0
    axes.plot(*zip(*points, strict=True), ".", color=LIGHT["ours"], alpha=0.6)
    axes.set(xlabel="score before measuring, less the task's highest", ylabel="best of the task / latency")
    axes.set_ylim(0)
    return 3.0


def name_of(label: str, run: Mapping[str, Any]) -> str:
    """Return a run's name in a legend."""
    return TITLES[label] if run["model"] == label else f"{TITLES[label]}: {run['model']}"


def css() -> str:
    """Return the theme's colours as CSS variables, for light and dark paper."""
    light, dark = (" ".join(f"--{name}: {pair[i]};" for name, pair in COLOURS.items()) for i in (0, 1))
    return (
        f":root {{ color-scheme: light dark; {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    )
