"""`tchub bundle runtime`: the two libraries that a CPU bundle needs where TVM is not installed."""

from __future__ import annotations

from pathlib import Path

import click

from .options import output_options
from .output import Output


@click.command("runtime")
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of the copies.")
@output_options
def command(output: Path, out: Output) -> None:
    """Copy TVM's runtime libraries, for a machine of this one's architecture without TVM. CUDA bundles need none.

    \b
    Examples:
      tchub bundle runtime --output runtime
      python3 bundle.zip --runtime runtime --output results.jsonl      # on the device
    """
    from ..bundle.runtime import copy_runtime

    copies = copy_runtime(output)
    size = sum(path.stat().st_size for path in copies)
    out.data(
        {"paths": [str(path) for path in copies], "bytes": size},
        lambda console: console.print(f"{len(copies)} libraries, {size / 2**20:.1f} MiB, in {output}"),
    )
