"""What other devices' programs are worth on a new one: methods x targets x protocols, many seeds.

    python scripts/build_zoo.py import --data DIR
    python scripts/bench_transfer.py --json

Each result and each trained model is kept under `runs/transfer`, so that a run that was killed goes on.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
from benchmarking import ROOT
from transfer_data import TARGETS, Library
from transfer_methods import METHODS
from transfer_runs import Runs, questions


@click.command()
@click.option(
    "--split", default="test", type=click.Choice(["val", "test"]), help="Which tasks judge.", show_default=True
)
@click.option("--target", "targets", multiple=True, type=click.Choice(list(TARGETS)))
@click.option("--method", "methods", multiple=True, type=click.Choice(list(METHODS)))
@click.option("--seeds", default=5, show_default=True, help="How many.")
@click.option("--minutes", default=float("inf"), help="Answer nothing new after so long.")
@click.option("--work", default=ROOT / "runs" / "transfer", type=click.Path(path_type=Path), show_default=True)
@click.option("--cap", default=0, help="Programs of a task at most; 0 takes all.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the document.")
def main(split, targets, methods, seeds, minutes, work, cap, as_json) -> None:
    """Judge every method on every target."""
    import torch

    torch.set_num_threads(1)
    runs = Runs(work, split, Library(work / "data", cap), time.monotonic() + 60 * minutes)
    for q in questions(targets or tuple(TARGETS), methods or tuple(METHODS), tuple(range(seeds))):
        runs.answer(q)


if __name__ == "__main__":
    main()
