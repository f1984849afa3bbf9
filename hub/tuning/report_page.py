"""The report as one HTML page that needs no network, and how numbers are said."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import charts
from .charts import TITLES

# Quartiles further apart than this are no latency of an idle machine.
WIDE = 1.5


def gains(report: dict[str, Any]) -> list[str]:
    """Say what tuning gained end to end, one sentence for each system that the tuned network stands beside."""
    latency = report.get("latency", {})
    if "tuned" not in latency:
        return []
    tuned = latency["tuned"]["median"]
    beside = {"pytorch": "PyTorch", "untuned": "untuned", "stock": "tuned with the stock model"}
    beside |= {name: TITLES[name] for name in ("torch.compile", "onnxruntime", "openvino")}
    lines = [_gain(latency[name]["median"], tuned, title) for name, title in beside.items() if name in latency]
    titles = {"tuned": "the tuned network"} | beside
    # Where the middle half of the repeats is too wide, a ratio of medians does not mean much.
    ends = {name: (one.get("first_quartile", 0.0), one.get("third_quartile", 0.0)) for name, one in latency.items()}
    wide = {name for name, (first, third) in ends.items() if third > WIDE * first}
    disturbed = [title for name, title in titles.items() if name in wide]
    if disturbed:
        lines.append(
            f"{' and '.join(disturbed)} varied by more than half while timed: the machine was busy, so time it again"
        )
    return lines


def _gain(other: float, tuned: float, title: str) -> str:
    times = f"{_ms(tuned)} ms, {title} {_ms(other)} ms"
    if tuned > other:
        return f"{tuned / other:.2f}x slower than {title} ({times})"
    return f"{other / tuned:.{2 if other < 10 * tuned else 0}f}x faster than {title} ({times})"


def runs_here(report: dict[str, Any]) -> bool:
    """Return True where this machine can run the result: the run is done, its output right, its device this one."""
    wrong = any(not check["ok"] for check in report.get("output_check", {}).values())
    elsewhere = str(report.get("device")).startswith(("rpc:", "bundle:"))
    return report["status"] == "done" and not wrong and not elsewhere


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
    runs = report["runs"]
    latency = {name: report["latency"][name] for name in TITLES if name in report.get("latency", {})}
    return environment.get_template("report.html.j2").render(
        r=report,
        gains=gains(report),
        usage=usage(folder) if runs_here(report) else {},
        titles=TITLES,
        latency=latency,
        charts=charts,
        caught_up=caught_up(runs),
        settings=list(_flat(report["settings"])),
        stock_best={task["id"]: task["best"] for task in runs.get("stock", {}).get("tasks", [])},
    )


def caught_up(runs: dict[str, Any]) -> dict[str, float] | None:
    """Return when the main run's sum of tasks was first no more than the stock model's last: `trial` and `seconds`.

    None where one of the two did not run, or it never was.
    """
    goal = runs.get("stock", {}).get("sum_of_tasks")
    if goal is None or "tuned" not in runs:
        return None
    points = (point for point in runs["tuned"]["curve"] if point["latency"] <= goal)
    return next(({name: point[name] for name in ("trial", "seconds")} for point in points), None)


def _flat(settings: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by their full name, e.g. `search: engine`."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}: ")
        else:
            yield before + name, value


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
