"""`tchub tune` and `run`: tune a network, run it and time it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..text import Column, Part
from ..tuning.config import TuneConfig
from . import options as opt
from .output import Output

if TYPE_CHECKING:
    from ..networks.tuned import TunedNetwork
    from ..tuning.report import TuneResult


@opt.command("tune")
@click.argument("network")
@opt.device_options
@opt.bundle_options
@opt.out_option("Output folder.", "out")
@opt.shape_option
@opt.options_of(
    TuneConfig, "checkpoint", "mode", "trials", "trials_per_iter", "early_stop", "latency_target", "layout",
    "precision", "winograd", "seed", "update", "reuse",
    checkpoint="A checkpoint, stock (MetaSchedule's own model) or none. [default: the best fit]",
)  # fmt: skip
@click.option(
    "--engine", default="auto", type=click.Choice(["auto", "decisions", "dqn", "metaschedule"]), metavar="E",
    help="The search: auto, metaschedule, tchub's over decisions, or the same by a deep Q-network (dqn).",
)  # fmt: skip
@click.option(
    "--compare", default="", metavar="NAMES",
    help="Also time: torch.compile, onnxruntime, openvino; stock tunes again with MetaSchedule's own model.",
)  # fmt: skip
@opt.threads_option
def tune_command(network: str, out: Path, engine: str, compare: str, output: Output, **options: Any) -> None:
    """Tune a network with TVM's MetaSchedule, on this machine, its NVIDIA card, or others through TVM's RPC.

    NETWORK is a reference network (bert-tiny, resnet-18, ...), a .pt2 file of torch.export.save, an .onnx file, or
    a transformers config.json. The output folder takes the compiled library, a MetaSchedule database,
    report.json and report.html. Ctrl-C is safe: run the same command again to go on.

    \b
    Examples:
      tchub tune model.onnx --compare onnxruntime,openvino --out out/
      tchub tune bert-tiny --checkpoint tcl-epyc+local --trials 128
      tchub tune model.onnx --shape batch=1,8 --shape seq=128
      tchub tune bert-tiny --device rpc://tracker.lan:9190/turin --trials 512
      tchub tune bert-tiny --device cuda --checkpoint tilenet-a100 --precision float16
      tchub tune resnet-50 --device h200 --bundle rounds --trials 512
    """
    from ..search.settings import SearchSettings
    from ..tuning.charts import TITLES
    from ..tuning.report_page import runs_here
    from ..tuning.tune import tune
    from .progress import shown_progress

    rivals = tuple(filter(None, compare.split(",")))
    with shown_progress(output, out) as progress:
        options |= {"search": SearchSettings(engine=engine), "compare": rivals}
        result = tune(network, out=out, progress=progress, **options)
    report = result.report
    output.data(result.as_dict(), _report(result))
    missing = [f"{name} was not timed: {why}" for name, why in report.get("not_compared", {}).items()]
    others = "" if options["checkpoint"] else " (why no other: tchub pull --dry-run)"
    chosen = [reason + others for reason in report["runs"]["tuned"]["reasons"][:1]]
    for text in (*chosen, *report.get("notes", ()), *missing):
        output.note(text)
    output.note(f"library: {result.library}; report: {result.folder / 'report.html'}")
    for variant in report.get("variants", [])[1:]:
        medians = ", ".join(f"{TITLES[name]} {1e3 * v['median']:.3f} ms" for name, v in variant["latency"].items())
        output.note(f"{variant['network']}: {medians}; library: {variant['libraries']['tuned']['path']}")
    if runs_here(report):
        suggest_use(result.folder, output)
    pytorch, tuned = (result.latency.get(name) for name in ("pytorch", "tuned"))
    if pytorch is not None and tuned is not None and pytorch < tuned:
        more = 4 * report["runs"]["tuned"]["trials_asked"]
        output.hint(f"the same command with --trials {more} goes on from here", "PyTorch is faster")


def _report(result: TuneResult) -> Iterator[Part]:
    """Show the latencies and the output check as a table, what was gained, and what it cost."""
    from ..tuning.report_page import gains

    report = result.report
    for label, run in report["runs"].items():
        yield (
            f"{label}: {run['trials']} programs of {len(run['tasks'])} tasks with {run['model']} "
            f"in {run['tuning_seconds']:.0f} s ({run['failed']} failed)"
        )
    if report.get("latency_note"):
        yield f"end-to-end latency: {report['latency_note']}"
        for label, run in report["runs"].items():
            untuned, tuned = map(_ms, (run["sum_of_tasks_untuned"], run["sum_of_tasks"]))
            yield f"{label}, sum of the tasks: {untuned} untuned, {tuned} tuned"
    if report["latency"]:
        yield list(_latency_columns(result))
    for name, check in report["output_check"].items():
        yield (
            f"{name}: largest difference to the original's output {check['max_abs_diff']:.1e} at outputs up to "
            f"{check['max_abs_output']:.3g}, {check['worst']:.1%} of what is allowed"
        )
    yield from gains(report)


def _latency_columns(result: TuneResult) -> Iterator[Column]:
    """Make the columns of the systems' latencies, beside PyTorch's and the untuned network's."""
    from ..tuning.charts import TITLES

    latency, medians, checks = result.report["latency"], result.latency, result.report["output_check"]
    yield Column("", [TITLES[name] for name in latency], least=10)
    yield Column("ms", [f"{1e3 * median:.3f}" for median in medians.values()], True)
    yield Column("quartiles", list(map(_quartiles, latency.values())), True, leaves=1)
    for leaves, name, title in ((3, "pytorch", "/ PyTorch"), (2, "untuned", "/ untuned")):
        whole = medians.get(name)
        yield Column(title, ["" if whole is None else f"{m / whole:.3g}" for m in medians.values()], True, leaves)
    verdicts = {
        name: "WRONG" if not check["ok"] else "equal" if check.get("checked", True) else "not checked"
        for name, check in checks.items()
    }
    yield Column("output", [verdicts.get(name, "") for name in latency], True)


def _quartiles(facts: dict[str, Any]) -> str:
    return f"{1e3 * facts['first_quartile']:.3f}-{1e3 * facts['third_quartile']:.3f}"


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{1e3 * seconds:.3f} ms"


def suggest_use(folder: str | Path, output: Output) -> None:
    """Show how to run the network in an output folder, in Python and in a shell."""
    from ..tuning.report_page import usage

    for title, lines in usage(folder).items():
        output.hint("; ".join(lines.splitlines()), title)


@opt.command("run")
@click.argument("folder", type=opt.PATH)
@click.option(
    "--input", "source", metavar="FILE", type=opt.PATH,
    help="An .npz file with the inputs by name or in their order, or an .npy file with the only one. [default: random]",
)  # fmt: skip
@click.option("--out", metavar="FILE", type=opt.FILE, help="Write the outputs by name to this .npz file.")
@click.option("--bench", is_flag=True, help="Time the network now, beside what its report says.")
@click.option("--seconds", default=5.0, type=click.FloatRange(0, min_open=True), help="Of timing.")
def run_command(
    folder: Path, source: Path | None, out: Path | None, bench: bool, seconds: float, output: Output
) -> None:
    """Run a tuned network once, or time it. FOLDER is the output folder of `tchub tune`.

    Without --input, floating-point inputs are random (the same in every call), integers are 0 and booleans true.
    A summary of the outputs is printed. From Python: hub.load_tuned(FOLDER), which takes PyTorch's tensors too.
    --bench times it with the threads with which it was tuned, for each set of shapes; the latencies of the report,
    PyTorch's included, were measured when it was tuned, maybe on another machine.

    \b
    Examples:
      tchub run out/
      tchub run out/ --input x.npz --out y.npz
      tchub run out/ --bench --input x.npz --seconds 20
    """
    from ..networks.tuned import load_tuned, random_arrays, read_arrays, write_arrays

    if bench and out is not None:
        raise click.UsageError("--bench times the network and writes no outputs: leave out --out")
    tuned = load_tuned(folder)
    given = read_arrays(source, tuned.signature) if source else None
    if bench:
        _time(tuned, source, given, seconds, output)
        return
    outputs = tuned.run(random_arrays(tuned.signature) if given is None else given)
    if out is not None:
        write_arrays(out, outputs)
    rows = [{"name": name, **_array_facts(array)} for name, array in outputs.items()]
    output.data({"network": tuned.name, "input": source, "outputs": rows, "out": out}, [list(_array_columns(rows))])
    if source is None:
        output.note("the inputs were made up; give your own with --input")
    if out is not None:
        output.note(f"outputs: {out}")


def _array_facts(array: Any) -> dict[str, Any]:
    """Return shape, type and spread of an array; the spread is None where there is no number."""
    import numpy as np

    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    spread = {name: float(getattr(finite, name)()) if finite.size else None for name in ("min", "mean", "max")}
    not_finite = int(numbers.size - finite.size)
    return {"shape": list(array.shape), "dtype": array.dtype.name, **spread, "not_finite": not_finite}


def _array_columns(rows: list[dict[str, Any]]) -> Iterator[Column]:
    yield Column("output", [row["name"] for row in rows], least=10)
    yield Column("shape", ["x".join(map(str, row["shape"])) or "scalar" for row in rows])
    yield Column("type", [row["dtype"] for row in rows], leaves=1)
    for name, leaves in (("min", 3), ("mean", 2), ("max", 4)):
        yield Column(name, ["-" if row[name] is None else f"{row[name]:.6g}" for row in rows], True, leaves)
    if any(row["not_finite"] for row in rows):
        yield Column("not finite", [str(row["not_finite"]) for row in rows], True)


def _time(tuned: TunedNetwork, source: Path | None, arrays: Any, seconds: float, output: Output) -> None:
    """Time a tuned network, beside the latencies of its report."""
    from ..networks.tuned import bench
    from ..tuning.charts import TITLES

    forms = [str(signature) for signature in tuned.signatures] if source is None else [str(source)]
    latencies = bench(tuned, arrays, seconds)
    now: Any = [{"inputs": form} | latency.as_dict() for form, latency in zip(forms, latencies, strict=True)]
    report = tuned.latency
    titles = [f"now: {one['inputs']}" for one in now] if len(now) > 1 else ["now"]
    columns = [
        Column("", [*titles, *(f"report: {TITLES.get(name, name)}" for name in report)], least=10),
        Column("ms", [f"{1e3 * m:.3f}" for m in (*(one["median"] for one in now), *report.values())], True),
        Column("quartiles", [*map(_quartiles, now), *("" for _ in report)], True, leaves=1),
    ]
    title = f"{tuned.name}, {tuned.threads} thread{'s' * (tuned.threads > 1)}"
    output.data({"network": tuned.name, "threads": tuned.threads, "now": now, "report": report}, [title, columns])
