"""`tchub run`: run a tuned network on arrays from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console


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
def command(folder: Path, source: Path | None, destination: Path | None, out: Output) -> None:
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
    out.data(result | {"output": destination and str(destination)}, lambda console: _draw(rows, console))
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


def _draw(rows: list[dict[str, Any]], console: Console) -> None:
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
