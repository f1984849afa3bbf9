"""The result of `tchub adapt` for a reader: the verdict, how it came about, the learning curve, the tasks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from ..adaptation.result import AdaptResult


def draw(result: AdaptResult, console: Console) -> None:
    """Print a result."""
    for key, value in _lines(result).items():
        console.print(f"{key:<15}", style="bold", end="", highlight=False)
        console.print(value, highlight=False)
    if result.curve:
        _draw_curve(result, console)
    _draw_tasks(result, console)


def _lines(result: AdaptResult) -> dict[str, str]:
    from ..adaptation.judge import top_text
    from ..adaptation.name import target_text

    guard, learning = result.guard, result.learning
    low, high = guard.interval
    rounds = len(result.curve) - 1 if result.curve else result.rounds  # the first point is the first batch's
    lines = {
        "checkpoint": f"{result.name}@{result.version}" if result.adapted else f"{result.base} kept",
        "device": f"{result.device}, programs for {target_text(result.target, result.threads)}",
        "workload": f"{result.workload}, {len(result.tasks)} tasks, {result.pool_size:,} candidates",
        "budget": result.budget,
        "measured": f"{result.measured} programs ({result.failed} failed, {result.reused} reused)",
        "picked by": f"{result.sampler}, {rounds} rounds after a first batch by {result.first_sampler}",
        "method": f"{learning['method']} ({learning['reason']}), {learning['strength']:.0%} of the way",
    }
    if result.sources:
        lines["start"] = result.start
        lines |= _corpora(learning["training"])
    lines["pairwise"] = (
        f"{guard.base:.3f} before, {guard.adapted:.3f} after, {guard.gain:+.3f} "
        f"({guard.level:.0%} interval {low:+.3f} to {high:+.3f})"
    )
    if result.zero_shot is not None:
        before, after = (result.zero_shot[when]["pairwise"] for when in ("before", "after"))
        lines["pairwise"] += ", both given the programs learnt from"
        lines["zero-shot"] = f"pairwise {before:.3f} before, {after:.3f} after, given nothing"
    lines["top-1 (top-5)"] = f"{top_text(result.before)} before, {top_text(result.after)} after"
    harm = {}
    if result.context is not None and result.context.harms:
        harm["context"] = f"it harms: {result.context}; tune with --update {result.update}"
    times = (f"{phase} {seconds:.0f} s" for phase, seconds in result.seconds.items() if seconds >= 1)
    return lines | {
        "judged on": f"{guard.programs} held-out programs of {guard.tasks} tasks",
        "because": guard.reason,
        **harm,
        "time": ", ".join(times),
    }


def _corpora(training: dict[str, Any]) -> dict[str, str]:
    """Which corpora the model has learnt, and after which it ranked the labels worse."""
    learnt = [f"learnt {', '.join(training['sources'])}"] if training.get("sources") else []
    left_out = [
        f"left out {name}, after which the base ranked the labels worse ({was['before']:.3f}, then {was['after']:.3f})"
        for name, was in training.get("left_out", {}).items()
    ]
    return {"corpora": "; ".join(learnt + left_out)} if learnt or left_out else {}


def _draw_curve(result: AdaptResult, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("labels", "seconds", "choices slower than the best", "pairwise"):
        table.add_column(title, justify="right")
    for point in result.curve:
        numbers = (str(point.labels), f"{point.seconds:.0f}", f"{100 * point.slowdown:.1f}%", f"{point.pairwise:.3f}")
        table.add_row(*numbers)
    console.print(table)
    if result.stop is not None:
        console.print(f"stopped: {result.stop.reason}", highlight=False)


def _draw_tasks(result: AdaptResult, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("task", "operator"):
        table.add_column(title)
    for title in ("candidates", "learnt from", "held out", "failed"):
        table.add_column(title, justify="right")
    for task in result.tasks:
        numbers = map(str, (task.pool, task.learn, task.hold_out, task.failed))
        table.add_row(task.task, task.op, *numbers)
    console.print(table)
    for reason, count in Counter(reason for _, reason in result.skipped).items():
        console.print(f"left out {count} task{'s' * (count > 1)}: {reason}", highlight=False)
