"""`tchub bench`: time a tuned network on this machine, beside what its report says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console


@click.command("bench")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--input", "source", metavar="FILE", type=click.Path(path_type=Path),
    help="Inputs as `tchub run` takes them. Default: random, for each set of shapes.",
)  # fmt: skip
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Of timing.")
@output_options
def command(folder: Path, source: Path | None, seconds: float, out: Output) -> None:
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
    out.data(result, lambda console: _draw(result, console))


def _draw(result: dict[str, Any], console: Console) -> None:
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
