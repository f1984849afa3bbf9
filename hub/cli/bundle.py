"""`tchub bundle`: compile programs here, measure them where no compiler is, take the results back."""

from __future__ import annotations

import click

from .lazy import LazyGroup

# name -> module in this folder; each module holds a click command named `command`.
COMMANDS = {"build": "bundle_build", "runtime": "bundle_runtime", "ingest": "bundle_ingest"}


@click.group("bundle", cls=LazyGroup, modules=COMMANDS)
def command() -> None:
    """Measure programs on a machine that has no compiler: a GPU machine, a small board.

    \b
    Examples:
      tchub bundle build --workload bert-tiny --target h200 --programs 200 --output h200.zip
      python3 h200.zip --output results.jsonl          # on the GPU machine: driver, Python and numpy
      tchub bundle ingest results.jsonl --bundle h200.zip --device h200 --out corpora/h200
    """
