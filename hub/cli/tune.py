"""`tchub tune`, `run`, `bench` and `quickstart`: tune a network, run it and time it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import device_options, output_options, shape_option, threads_option
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..quickstart import QuickstartProgress, QuickstartResult
    from ..tuning.tune import TuneResult
    from .native_log import NativeLog
    from .terminal import Column


@click.command("tune")
@click.argument("network")
@click.option(
    "--checkpoint", metavar="NAME",
    help="A checkpoint; `stock` for MetaSchedule's own model; `none` for none. Default: what fits this machine best.",
)  # fmt: skip
@device_options
@click.option("--trials", default=128, show_default=True, type=click.IntRange(1), help="Programs to measure.")
@click.option("--output", default="out", show_default=True, type=click.Path(file_okay=False), help="Folder.")
@threads_option
@shape_option
@click.option(
    "--layout", default="channels-last", show_default=True, type=click.Choice(["channels-last", "as-imported"]),
    help="Of the convolutions; as-imported leaves the network's graph as PyTorch has it.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of the searches.")
@click.option(
    "--update", default="auto", show_default=True, type=click.Choice(["auto", "none", "context", "few-shot"]),
    help="How the checkpoint learns from the measured programs: as context (TileNet), by small steps, or not.",
)  # fmt: skip
@click.option("--compare-stock", is_flag=True, help="Tune again with MetaSchedule's own model, and compare.")
@click.option("--trials-per-iter", type=click.IntRange(1), metavar="N", help="Programs of a task in a round, at most.")
@click.option(
    "--early-stop", default=0.0, metavar="SHARE", type=click.FloatRange(0, 1),
    help="End when no task is expected to gain this share of the latency in one more round; 0: spend all trials.",
)  # fmt: skip
@click.option(
    "--search", "engine", default="auto", show_default=True, type=click.Choice(["auto", "decisions", "metaschedule"]),
    help="TVM's evolutionary search, or tchub's over decisions, which ranks programs without TVM.",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Leave aside what earlier runs measured on this device.")
@click.option(
    "--population",
    default=128,
    show_default=True,
    type=click.IntRange(8),
    help="Of a generation of TVM's search.",
)
@click.option(
    "--generations", default=3, show_default=True, type=click.IntRange(1), help="Generations of TVM's search."
)
@click.option("--no-resume", is_flag=True, help="Refuse an output folder that holds an earlier run.")
@output_options
def tune_command(network: str, out: Output, **options: Any) -> None:
    """Tune a network with TVM's MetaSchedule, on this machine or on others through TVM's RPC.

    NETWORK is a reference network (bert-tiny, resnet-18, ...), a .pt2 file of torch.export.save, an .onnx file, or
    a transformers config.json. The output folder takes the compiled library, MetaSchedule's database, trials.jsonl,
    report.json and report.html. Ctrl-C is safe: run the same command again to go on.

    \b
    Examples:
      tchub tune bert-tiny --checkpoint tcl-epyc+local --trials 128 --output out/
      tchub tune resnet-18 --trials 128 --compare-stock --output resnet/
      tchub tune model.pt2 --checkpoint stock --threads 4 --json
      tchub tune model.onnx --shape batch=1,8 --shape seq=128
      tchub tune bert-tiny --device rpc://tracker.lan:9190/turin --trials 512
    """
    from ..search.task_search import SearchSettings
    from ..tuning.report import TITLES
    from ..tuning.tune import tune
    from .native_log import native_output_logged
    from .progress import shown_tuning

    sizes = {"population_size": options.pop("population"), "genetic_num_iters": options.pop("generations")}
    search = SearchSettings(**sizes, engine=options.pop("engine"))
    options["reuse"] = not options.pop("fresh")
    resume = not options.pop("no_resume")
    sessions = 2 if options["compare_stock"] and options["checkpoint"] != "stock" else 1
    with native_output_logged(out, options["output"]) as log, shown_tuning(out, log, sessions) as progress:
        result = tune(network, search=search, resume=resume, progress=progress, **options)
    out.data(result.as_dict(), lambda console: draw(result, console))
    # Why the other checkpoints were passed over stands in the report.
    for text in (*result.report["runs"]["tuned"]["reasons"][:1], *result.report.get("notes", ())):
        out.note(text)
    out.note(f"library: {result.library}; report: {result.folder / 'report.html'}")
    for variant in result.report.get("variants", [])[1:]:
        medians = {name: f"{1e3 * facts['median']:.3f} ms" for name, facts in variant["latency"].items()}
        words = ", ".join(f"{TITLES[name]} {median}" for name, median in medians.items())
        out.note(f"{variant['network']}: {words}; library: {variant['libraries']['tuned']['path']}")
    _suggest(result, out)


def draw(result: TuneResult, console: Console) -> None:
    """Print the latencies and the output check as a table, what was gained, and what it cost."""
    from ..tuning.report import gains
    from .terminal import table

    report = result.report
    for label, run in report["runs"].items():
        console.print(
            f"{label}: {run['trials']} programs of {len(run['tasks'])} tasks with {run['model']} "
            f"in {run['tuning_seconds']:.0f} s ({run['failed']} failed)",
            highlight=False,
        )
    if report.get("latency_note"):
        console.print(f"end-to-end latency: {report['latency_note']}", highlight=False)
        for label, run in report["runs"].items():
            console.print(f"{label}, sum of the tasks: {_sums(run)}", highlight=False)
    if report["latency"]:
        console.print(table(_columns(result), console.width))
    for name, check in report["output_check"].items():
        console.print(
            f"{name}: largest difference to the original's output {check['max_abs_diff']:.1e} at outputs up to "
            f"{check['max_abs_output']:.3g}, {check['worst']:.1%} of what is allowed",
            highlight=False,
        )
    for line in gains(report):
        console.print(line, style="bold", highlight=False)


def _columns(result: TuneResult) -> list[Column]:
    """Make the columns of the systems' latencies, beside PyTorch's and the untuned network's."""
    from ..tuning.report import TITLES
    from .terminal import Column

    latency, medians = result.report["latency"], result.latency
    spread = [f"{1e3 * facts['first_quartile']:.3f}-{1e3 * facts['third_quartile']:.3f}" for facts in latency.values()]
    pytorch, untuned = ([_ratio(m, medians.get(name)) for m in medians.values()] for name in ("pytorch", "untuned"))
    checks = [result.report["output_check"].get(name) for name in latency]
    return [
        Column("", [TITLES[name] for name in latency], least=10),
        Column("ms", [f"{1e3 * median:.3f}" for median in medians.values()], number=True),
        Column("quartiles", spread, number=True, leaves=1),
        Column("/ PyTorch", pytorch, number=True, leaves=3),
        Column("/ untuned", untuned, number=True, leaves=2),
        Column("output", ["" if check is None else _verdict(check) for check in checks], number=True),
    ]


def _verdict(check: dict[str, Any]) -> str:
    return "WRONG" if not check["ok"] else "equal" if check.get("checked", True) else "not checked"


def _suggest(result: TuneResult, out: Output) -> None:
    """Say how to run the network, and how to gain more where PyTorch is faster."""
    from ..tuning.report import runs_here

    if runs_here(result.report):
        suggest_use(result.folder, out)
    pytorch, tuned = (result.latency.get(name) for name in ("pytorch", "tuned"))
    if pytorch is not None and tuned is not None and pytorch < tuned:
        more = 4 * result.report["runs"]["tuned"]["trials_asked"]
        out.hint(f"the same command with --trials {more} goes on from here", "PyTorch is faster")


def suggest_use(folder: str | Path, out: Output) -> None:
    """Say how to run the network in an output folder, in Python and in a shell."""
    from ..tuning.report import usage

    for title, lines in usage(folder).items():
        out.hint("; ".join(lines.splitlines()), title)


def _sums(run: dict[str, Any]) -> str:
    before, after = (
        "unknown" if run[name] is None else f"{1e3 * run[name]:.3f} ms"
        for name in ("sum_of_tasks_untuned", "sum_of_tasks")
    )
    return f"{before} untuned, {after} tuned"


def _ratio(value: float, reference: float | None) -> str:
    return "" if reference is None else f"{value / reference:.3g}"


@click.command("run")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--input", "source", metavar="FILE", type=click.Path(path_type=Path),
    help="An .npz file with the inputs by name or in their order, or an .npy file with the only one. Default: random.",
)  # fmt: skip
@click.option(
    "--output", "destination", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Write the outputs by name to this .npz file.",
)  # fmt: skip
@output_options
def run_command(folder: Path, source: Path | None, destination: Path | None, out: Output) -> None:
    """Run a tuned network once. FOLDER is the output folder of `tchub tune`.

    Without --input, floating-point inputs are random (the same in every call), integers are 0 and booleans true.
    A summary of the outputs is printed. From Python: hub.load_tuned(FOLDER), which takes PyTorch's tensors too.

    \b
    Examples:
      tchub run out/
      tchub run out/ --input x.npz --output y.npz
      tchub run out/ --input x.npy --json
    """
    from ..networks.arrays import random_arrays, read_arrays, write_arrays
    from ..networks.tuned import load_tuned

    tuned = load_tuned(folder)
    outputs = tuned.run(read_arrays(source, tuned.signature) if source else random_arrays(tuned.signature))
    if destination is not None:
        write_arrays(destination, outputs)
    rows = [{"name": name, **_facts(array)} for name, array in outputs.items()]
    result = {"network": tuned.name, "input": source and str(source), "outputs": rows}
    out.data(result | {"output": destination and str(destination)}, lambda console: _draw_run(rows, console))
    if source is None:
        out.note("the inputs were made up; give your own with --input")
    if destination is not None:
        out.note(f"outputs: {destination}")


def _facts(array: Any) -> dict[str, Any]:
    """Shape, type and spread of an array; the spread is None where there is no number."""
    import numpy as np

    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    spread = {name: float(getattr(finite, name)()) if finite.size else None for name in ("min", "mean", "max")}
    return {
        "shape": list(array.shape), "dtype": array.dtype.name, **spread,
        "not_finite": int(numbers.size - finite.size),
    }  # fmt: skip


def _draw_run(rows: list[dict[str, Any]], console: Console) -> None:
    from .terminal import Column, table

    def numbers(key: str) -> list[str]:
        return ["-" if row[key] is None else f"{row[key]:.6g}" for row in rows]

    columns = [
        Column("output", [row["name"] for row in rows], least=10),
        Column("shape", ["x".join(map(str, row["shape"])) or "scalar" for row in rows]),
        Column("type", [row["dtype"] for row in rows], leaves=1),
        Column("min", numbers("min"), number=True, leaves=3),
        Column("mean", numbers("mean"), number=True, leaves=2),
        Column("max", numbers("max"), number=True, leaves=4),
    ]
    if any(row["not_finite"] for row in rows):
        columns.append(Column("not finite", [str(row["not_finite"]) for row in rows], number=True))
    console.print(table(columns, console.width))


@click.command("bench")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--input", "source", metavar="FILE", type=click.Path(path_type=Path),
    help="Inputs as `tchub run` takes them. Default: random, for each set of shapes.",
)  # fmt: skip
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Of timing.")
@output_options
def bench_command(folder: Path, source: Path | None, seconds: float, out: Output) -> None:
    """Time a tuned network on this machine, now. FOLDER is the output folder of `tchub tune`.

    It runs with the threads with which it was tuned. Beside it stands what the report says, PyTorch included: those
    latencies were measured when it was tuned, maybe on another machine.

    \b
    Examples:
      tchub bench out/
      tchub bench out/ --input x.npz --seconds 20
      tchub bench out/ --json
    """
    from ..networks.arrays import read_arrays
    from ..networks.tuned import bench, load_tuned

    tuned = load_tuned(folder)
    found = bench(tuned, read_arrays(source, tuned.signature) if source else None, seconds)
    forms = [str(signature) for signature in tuned.signatures] if source is None else [str(source)]
    result = {
        "network": tuned.name,
        "threads": tuned.threads,
        "now": [{"inputs": form, **latency.as_dict()} for form, latency in zip(forms, found, strict=True)],
        "report": tuned.latency,
    }
    out.data(result, lambda console: _draw_bench(result, console))


def _draw_bench(result: dict[str, Any], console: Console) -> None:
    from ..tuning.report import TITLES
    from .terminal import Column, table

    now, report = result["now"], result["report"]
    spread = [f"{1e3 * one['first_quartile']:.3f}-{1e3 * one['third_quartile']:.3f}" for one in now]
    several = [f"now: {one['inputs']}" for one in now] if len(now) > 1 else ["now"]
    medians = [*(one["median"] for one in now), *report.values()]
    columns = [
        Column("", [*several, *(f"report: {TITLES.get(name, name)}" for name in report)], least=10),
        Column("ms", [f"{1e3 * median:.3f}" for median in medians], number=True),
        Column("quartiles", [*spread, *("" for _ in report)], number=True, leaves=1),
    ]
    threads = result["threads"]
    console.print(f"{result['network']}, {threads} thread{'s' * (threads > 1)}", highlight=False)
    console.print(table(columns, console.width))


@click.command("quickstart")
@click.option("--output", default="quickstart", show_default=True, type=click.Path(file_okay=False), help="Folder.")
@click.option("--trials", default=64, show_default=True, type=click.IntRange(1), help="Programs that tuning measures.")
@threads_option
@output_options
def quickstart_command(output: str, trials: int, threads: int | None, out: Output) -> None:
    """The whole way in under ten minutes on two cores: pull, adapt, tune, compare, on BERT-tiny.

    Pulls the checkpoint that fits this machine best, adapts it with a small budget, tunes BERT-tiny with it and
    prints the latency before and after, beside PyTorch's, and the output check. Ctrl-C is safe: run the same
    command again to go on.

    \b
    Examples:
      tchub quickstart
      tchub quickstart --output qs --trials 96 --json
    """
    from ..quickstart import quickstart
    from .native_log import native_output_logged

    with native_output_logged(out, output) as log, ExitStack() as stack:
        result = quickstart(output, trials=trials, threads=threads, progress=_progress(out, log, stack))
    out.data(result.as_dict(), lambda console: _draw_quickstart(result, console))
    out.note(f"report: {result.folder}/report.html")
    same = f" --threads {threads}" if threads is not None else ""
    if result.output_equal:
        suggest_use(result.folder, out)
    out.hint(f"tchub tune resnet-18 --checkpoint {result.tuned_with}{same} --trials 128 --output resnet-18")


def _progress(out: Output, log: NativeLog | None, stack: ExitStack) -> QuickstartProgress:
    from ..adaptation.settings import AdaptProgress
    from ..quickstart import QuickstartProgress
    from ..tuning.tune import TuneProgress
    from .progress import shown_progress, shown_tuning

    class Shown(QuickstartProgress):
        """Shows one display at a time on stderr."""

        def say(self, text: str) -> None:
            stack.close()
            out.note(text)

        def adapting(self) -> AdaptProgress:
            return stack.enter_context(shown_progress(out))

        def tuning(self) -> TuneProgress:
            return stack.enter_context(shown_tuning(out, log))

    return Shown()


def _draw_quickstart(result: QuickstartResult, console: Console) -> None:
    faster, against = result.untuned / result.tuned, result.pytorch / result.tuned
    verdict = "equals" if result.output_equal else "DIFFERS FROM"
    lines = {
        "network": f"{result.network}, tuned with {result.tuned_with}",
        "before": f"{1e3 * result.untuned:.2f} ms, TVM untuned",
        "after": f"{1e3 * result.tuned:.2f} ms, TVM tuned: {faster:.1f}x faster",
        "PyTorch": f"{1e3 * result.pytorch:.2f} ms, eager: the tuned network is {against:.2f}x as fast",
        "output": f"{verdict} PyTorch's (largest difference {result.max_abs_diff:.1e})",
        "time": f"{result.seconds / 60:.1f} min",
    }
    for key, value in lines.items():
        console.print(f"{key:<9}", style="bold", end="", highlight=False)
        console.print(value, highlight=False)
