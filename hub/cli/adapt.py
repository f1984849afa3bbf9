"""`tchub adapt`: measure a little on this machine, fine-tune a checkpoint, keep it if it ranks better."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from .options import device_options, output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..tuning.adapt_result import AdaptResult


@click.command("adapt")
@click.argument("name", required=False)
@device_options
@click.option(
    "--budget", default="10%", show_default=True, metavar="B",
    help="What may be measured: 10% of the candidates, 200 programs, or 15m of building and running.",
)  # fmt: skip
@click.option("--workload", metavar="NET", help="Network, operator, suite or file; default: the reference suite.")
@click.option("--method", default="few-shot", show_default=True, help="How the model learns.")
@click.option("--sampler", default="rdu", show_default=True, help="What picks programs: rdu, stratified, random.")
@click.option("--rounds", default=3, show_default=True, help="Rounds of picking, each with a model update.")
@click.option("--seed", default=0, show_default=True, help="Seed of every random choice.")
@click.option("--pool", default=128, show_default=True, metavar="N", help="Candidate programs of each task.")
@click.option("--cores", default=1, show_default=True, help="Cores that a program may use.")
@click.option("--work-dir", type=click.Path(file_okay=False), help="For the pool, the journal and the corpus.")
@output_options
def command(name: str | None, out: Output, **options: Any) -> None:
    """Adapt a checkpoint to this machine, or to others behind TVM's RPC, from a few measured programs.

    NAME is a checkpoint, e.g. tcl-epyc; without it, the one that fits this machine best is taken. A fifth of the
    budget measures programs that are never learnt from: if the adapted model does not rank them better than its
    base, the base is kept. The result is stored as NAME+local. Ctrl-C is safe: run the same command again to go on.

    \b
    Examples:
      tchub adapt tcl-epyc --device local --budget 10% --workload bert-tiny
      tchub adapt --budget 15m
      tchub adapt --device rpc://tracker.lan:9190/graviton --target graviton2 --budget 500
      tchub adapt tcl-epyc --budget 200 --workload resnet-18 --sampler random --json
    """
    from ..tuning.adapt import adapt
    from .adapt_progress import shown_progress

    options["programs_per_task"] = options.pop("pool")
    with shown_progress(out) as progress:
        result = adapt(name, progress=progress, **options)
    out.data(result.as_dict(), lambda console: _draw(result, console))
    for line in result.base_reasons:
        out.note(line)
    out.note(f"measurements: {result.journal}; as a corpus: {result.corpus}")
    out.hint(f"tchub tune {_tunable(result)} --checkpoint {result.name}")


def _tunable(result: AdaptResult) -> str:
    """The workload as `tchub tune` takes it: a suite is not one network."""
    from ...zoo.corpus.workloads import SUITES

    return SUITES[result.workload][0] if result.workload in SUITES else result.workload


def _draw(result: AdaptResult, console: Console) -> None:
    guard = result.guard
    stored = f"{result.name}@{result.version}" if result.adapted else f"{result.base} kept"
    low, high = guard.interval
    lines = {
        "checkpoint": stored,
        "device": result.device,
        "workload": f"{result.workload}, {len(result.tasks)} tasks, {result.pool_size:,} candidates",
        "measured": f"{result.measured} programs ({result.failed} failed, {result.reused} reused)",
        "picked by": f"{result.sampler}, {result.rounds} rounds after a random start",
        "pairwise": f"{guard.base:.3f} before, {guard.adapted:.3f} after, {guard.gain:+.3f} "
        f"({guard.level:.0%} interval {low:+.3f} to {high:+.3f})",
        "judged on": f"{guard.programs} held-out programs of {guard.tasks} tasks",
        "because": guard.reason,
        "time": ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in result.seconds.items() if seconds >= 1),
    }
    for key, value in lines.items():
        console.print(f"[bold]{key:<12}[/bold]{value}", highlight=False)
    _draw_tasks(result, console)


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
        console.print(f"left out {count} tasks: {reason}", highlight=False, markup=False)
