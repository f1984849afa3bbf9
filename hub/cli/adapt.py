"""`tchub adapt`: measure a little on this machine, fine-tune a checkpoint, keep it if it ranks better."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from .options import device_options, output_options, shape_option, threads_option
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..adaptation.result import AdaptResult


@click.command("adapt")
@click.argument("name", required=False)
@device_options
@click.option(
    "--budget", default="10%", show_default=True, metavar="B",
    help="What may be measured: 10% of the candidates, 200 programs (of fewer candidates all), 15m of building and "
    "running, or auto: rounds, until the next one is not worth its time.",
)  # fmt: skip
@click.option("--workload", metavar="NET", help="Network, operator, suite or file; default: the reference suite.")
@shape_option
@click.option(
    "--method", default="few-shot", show_default=True,
    help="How the model learns: few-shot, committee, continual, multi-task, or auto, which takes what ranks best.",
)  # fmt: skip
@click.option(
    "--from", "sources", metavar="A,B",
    help="Further checkpoints, of which the best is adapted, and folders of corpora of other devices to learn from.",
)  # fmt: skip
@click.option(
    "--sampler", default="rdu+", show_default=True,
    help="What picks programs: random, stratified, alt, balto, fasor, rdu, rdu+ or strata.",
)  # fmt: skip
@click.option(
    "--rounds", default=3, show_default=True,
    help="Rounds of picking, each with a model update; with --budget auto the least.",
)  # fmt: skip
@click.option(
    "--worth", default=60.0, show_default=True, metavar="S",
    help="With --budget auto: seconds of measuring that 1% of the network's latency is worth.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of every random choice.")
@click.option("--pool", default=128, show_default=True, metavar="N", help="Candidate programs of each task.")
@threads_option
@click.option("--work-dir", type=click.Path(file_okay=False), help="For the pool, the journal and the corpus.")
@output_options
def adapt_command(name: str | None, sources: str | None, out: Output, **options: Any) -> None:
    """Adapt a checkpoint to this machine, or to others behind TVM's RPC, from a few measured programs.

    NAME is a checkpoint, e.g. tcl-epyc; without it, the one that fits this machine best is taken. A fifth of the
    budget measures programs that are never learnt from: if the adapted model does not rank them better than its
    base, the base is kept. The result is stored as NAME+local, with --target, --threads or RPC servers as
    NAME+local-x86-64-v2, NAME+local-2t and the like. Ctrl-C is safe: run the same command again to go on.

    \b
    Examples:
      tchub adapt tcl-epyc --device local --budget 10% --workload bert-tiny
      tchub adapt tilenet-epyc --budget auto --worth 120 --workload resnet-50
      tchub adapt tcl-epyc --from tcl-xeon,tcl-graviton --sampler rdu --budget 15m
      tchub adapt tilenet-epyc --from corpora/epyc-turin --method auto --budget 200
      tchub adapt --device rpc://tracker.lan:9190/graviton --target graviton2 --budget 500
      tchub adapt tcl-epyc --budget 200 --workload resnet-18 --sampler random --json
    """
    from ..adaptation.adapt import adapt, adapt_root
    from .native_log import native_output_logged
    from .progress import shown_progress

    options["programs_per_task"] = options.pop("pool")
    with native_output_logged(out, options["work_dir"] or adapt_root()), shown_progress(out) as progress:
        result = adapt(name, sources=sources or (), progress=progress, **options)
    out.data(result.as_dict(), lambda console: draw(result, console))
    for line in result.base_reasons:
        out.note(line)
    out.note(f"measurements: {result.journal}; as a corpus: {result.corpus}")
    kept = result.name if result.adapted else name or result.asked or result.name  # a base of a folder is in no store
    words = f"{_tunable(result)} --checkpoint {shlex.quote(kept)}{_update(result)}{_same_device()}"
    out.hint(f"tchub tune {words}")


def _update(result: AdaptResult) -> str:
    """The option of `tchub tune` that leaves context out, where the model ranks worse with it."""
    return "" if result.update == "auto" else f" --update {result.update}"


def _same_device() -> str:
    """The options of `tchub tune` for the programs that were adapted to, in the user's own words."""
    given = click.get_current_context().params
    keys = {"--device": "device", "--target": "target", "--cc": "linker", "--threads": "threads"}
    options = {name: given[key] for name, key in keys.items() if given[key] not in (None, "local")}
    return "".join(f" {name} {shlex.quote(str(value))}" for name, value in options.items())


def _tunable(result: AdaptResult) -> str:
    """The workload as `tchub tune` takes it: a suite is not one network."""
    from ...zoo.corpus.workloads import SUITES

    given = click.get_current_context().params
    if given["shapes"]:  # the result has the network's name, and no path
        sizes = (f"{name}={','.join(map(str, values))}" for name, values in given["shapes"].items())
        return " ".join([shlex.quote(given["workload"]), *(f"--shape {shlex.quote(size)}" for size in sizes)])
    return SUITES[result.workload][0] if result.workload in SUITES else shlex.quote(result.workload)


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
