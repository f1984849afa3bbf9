"""The report as one HTML page that needs no network: its charts, and how numbers are said."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .bar_charts import Bar, Stack, bars, groups, stacks
from .charts import Line, lines, scatter

TITLES = {"untuned": "TVM, untuned", "pytorch": "PyTorch, eager", "tuned": "tuned", "stock": "tuned, stock model"}
# Parts of the tuning's wall time, in the order in which they are drawn, and what each is.
PHASES = {"search": "search", "model": "cost model", "measure": "measuring", "other": "other"}
# Tasks in the chart of trials; the table has all.
MOST_TASKS = 28
# Quartiles further apart than this are no latency of an idle machine.
WIDE = 1.5


def gains(report: dict[str, Any]) -> list[str]:
    """Say what tuning gained end to end, one sentence for each system that the tuned network stands beside."""
    latency = report.get("latency", {})
    if "tuned" not in latency:
        return []
    tuned = latency["tuned"]["median"]
    beside = {"pytorch": "PyTorch", "untuned": "TVM untuned", "stock": "tuned with the stock model"}
    lines = [_gain(latency[name]["median"], tuned, title) for name, title in beside.items() if name in latency]
    titles = {"tuned": "the tuned network"} | beside
    disturbed = [title for name, title in titles.items() if name in latency and _varied(latency[name])]
    if disturbed:
        lines.append(
            f"{' and '.join(disturbed)} varied by more than half while timed: the machine was busy, so time it again"
        )
    return lines


def _varied(latency: dict[str, Any]) -> bool:
    """Tell whether the middle half of the repeats is too wide for a ratio of medians to mean much."""
    return latency.get("third_quartile", 0.0) > WIDE * latency.get("first_quartile", 0.0)


def _gain(other: float, tuned: float, title: str) -> str:
    times = f"{_ms(tuned)} ms, {title} {_ms(other)} ms"
    if tuned > other:
        return f"{tuned / other:.2f}x slower than {title} ({times})"
    return f"{other / tuned:.{2 if other < 10 * tuned else 0}f}x faster than {title} ({times})"


def runs_here(report: dict[str, Any]) -> bool:
    """Tell whether this machine can run what was tuned: the run is done, its output right, its device this one."""
    wrong = any(not check["ok"] for check in report.get("output_check", {}).values())
    return report["status"] == "done" and not wrong and not report.get("device")


def usage(folder: str | Path) -> dict[str, str]:
    """Say how to run the network in an output folder: lines of Python and commands, by title."""
    quoted = shlex.quote(str(folder))
    return {
        "in Python": f"from tchub import hub\nnet = hub.load_tuned({str(folder)!r})\ny = net(x)",
        "in a shell": f"tchub run {quoted} --input x.npz",
        "time it again": f"tchub run --bench {quoted}",
    }


def render(report: dict[str, Any], folder: str | Path = "out") -> str:
    """Draw the report as one HTML page.

    Args:
        report: as `report.json` has it.
        folder: the output folder, as the lines that run the network name it.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"ms": _ms, "si": _si, "fixed": _fixed, "clock": _clock}
    latency = [(name, report["latency"][name]) for name in TITLES if name in report.get("latency", {})]
    return environment.get_template("report.html.j2").render(
        r=report,
        gains=gains(report),
        usage=usage(folder) if runs_here(report) else {},
        titles=TITLES,
        phases=PHASES,
        latency=latency,
        legend={label: _named(label, run) for label, run in report["runs"].items()},
        by_trial=_curves(report, "trial", "programs measured"),
        by_second=_curves(report, "seconds", "seconds of tuning"),
        latency_chart=bars([_bar(name, facts) for name, facts in latency], "ms, end to end"),
        phase_chart=_phases(report["runs"]),
        allocation_chart=_allocation(report["runs"]),
        prediction_chart=_predictions(report["runs"]),
        caught_up=caught_up(report["runs"]),
        settings=list(_flat(report["settings"])),
        stock_best={task["id"]: task["best"] for task in report["runs"].get("stock", {}).get("tasks", [])},
    )


def caught_up(runs: dict[str, Any]) -> dict[str, float] | None:
    """When the main run's sum of tasks was first no more than the stock model's last: `trial` and `seconds`.

    None where one of the two did not run, or it never was.
    """
    goal = runs.get("stock", {}).get("sum_of_tasks")
    if goal is None or "tuned" not in runs:
        return None
    found = (point for point in runs["tuned"]["curve"] if point["latency"] <= goal)
    return next(({name: point[name] for name in ("trial", "seconds")} for point in found), None)


def _flat(settings: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their full name, e.g. `search: engine`."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}: ")
        else:
            yield before + name, value


def _named(label: str, run: dict[str, Any]) -> str:
    return TITLES[label] if run["model"] == label else f"{TITLES[label]}: {run['model']}"


def _curves(report: dict[str, Any], key: str, title: str) -> str:
    series = []
    for label, run in report["runs"].items():
        points = [(float(p[key]), 1e3 * p["latency"]) for p in run["curve"]]
        before = run["sum_of_tasks_untuned"]
        if before is not None:
            points.insert(0, (0.0, 1e3 * before))
        series.append(Line(_named(label, run), points, label))
    return lines(series, title, "ms, sum of tasks")


def _bar(name: str, facts: dict[str, Any]) -> Bar:
    middle, low, high = (1e3 * facts[key] for key in ("median", "first_quartile", "third_quartile"))
    return Bar(TITLES[name], middle, low, high, name)


def _phases(runs: dict[str, Any]) -> str:
    """Wall time by phase; what no phase holds (the database, the log, the display) is the rest of the run's clock."""
    drawn = []
    for label, run in runs.items():
        known = [(run["phases"][name], name) for name in ("search", "model", "measure")]
        rest = run["tuning_seconds"] - sum(value for value, _ in known)
        drawn.append(Stack(TITLES[label], [*known, (max(0.0, rest), "other")]))
    return stacks(drawn, "seconds of tuning by phase")


def _allocation(runs: dict[str, Any]) -> str:
    """Programs measured of each task that has a choice, by run; the tasks with most of them."""
    spent: dict[str, dict[str, int]] = {}
    names: dict[str, str] = {}
    for label, run in runs.items():
        for task in run["tasks"]:
            if not task["one_program"]:
                spent.setdefault(task["id"], {})[label] = task["trials"]
                names[task["id"]] = task["name"]
    most = set(sorted(spent, key=lambda t: -sum(spent[t].values()))[:MOST_TASKS])
    left = len(spent) - len(most)
    rows = [(names[t], [(float(n), label) for label, n in by.items()]) for t, by in spent.items() if t in most]
    return groups(rows, "programs measured" + (f"; {left} tasks with fewer left out" if left else ""))


def _predictions(runs: dict[str, Any]) -> str:
    """Scores against speed relative to the best program of the task, for the main run."""
    run = runs.get("tuned")
    if run is None:
        return ""
    best = {task["id"]: task["best"] for task in run["tasks"] if not task["one_program"]}
    scores: dict[str, list[float]] = {}
    told = [p for p in run["programs"] if p["latency"] and p["predicted"] is not None and best.get(p["task"])]
    for p in told:
        scores.setdefault(p["task"], []).append(p["predicted"])
    points = [
        (p["predicted"] - max(scores[p["task"]]), best[p["task"]] / p["latency"])
        for p in told
        if len(scores[p["task"]]) > 1
    ]
    return scatter(points, "score before measuring, less the task's highest", "best of the task / latency")


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{1e3 * seconds:.4g}" if seconds >= 1e-7 else f"{1e3 * seconds:.6f}"


def _si(value: float) -> str:
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g}"


def _fixed(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
