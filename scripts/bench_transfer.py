"""What other devices' programs are worth on a new one: methods x targets x protocols, many seeds.

    python scripts/build_zoo.py import --data DIR
    python scripts/bench_transfer.py --json

Each result and each trained model is kept under `runs/transfer`, so that a run that was killed goes on. Choices
between methods are made with `--split val`, which writes no document.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from benchmarking import ROOT, finish
from transfer_data import SHARE, SOURCE_CAP, TARGETS
from transfer_devices import OURS, devices_block
from transfer_figures import mean_rows, ratio_rows, source_rows, summary
from transfer_methods import METHODS
from transfer_papers import ABLATION, PAPER_METHODS, paper_rows
from transfer_runs import LABELS, Question, Runs, order_questions, paper_questions, questions

BLOCKS = ("main", "sources", "forgetting", "papers")


def answered(runs: Runs, asked: Iterable[Question]) -> list[dict[str, Any]]:
    """The answers of all questions that have one."""
    return [found for question in asked if (found := runs.answer(question)) is not None]


def details(runs: Runs, asked: dict[str, list[Question]], seeds: tuple[int, ...]) -> dict[str, Any]:
    """Every table, and the facts of the protocols; the main one is made first. No `seeds`: nothing of forgetting."""
    rows = mean_rows(answered(runs, asked["main"]))
    ordered = mean_rows(answered(runs, asked["sources"]))
    devices = devices_block(runs, seeds)
    papers = mean_rows(answered(runs, asked["papers"]))
    return {
        "share": SHARE,
        "labels": list(LABELS),
        "programs_of_a_source_task": SOURCE_CAP,
        "targets": {target: list(sources) for target, sources in TARGETS.items()},
        "methods": {name: method.title for name, method in METHODS.items()},
        "rows": rows,
        "label_ratios": ratio_rows(rows),
        "sources": source_rows(rows, ordered),
        "papers": list(paper_rows(papers, PAPER_METHODS)),
        "ablation": list(paper_rows(papers, ABLATION)),
        "paper_rows": papers,
        **devices,
        "not_done": [f"{runs.left} results"] if runs.left else [],
    }


@click.command()
@click.option("--only", "blocks", multiple=True, type=click.Choice(BLOCKS), help="Parts to run; all by default.")
@click.option("--targets", multiple=True, type=click.Choice(list(TARGETS)), help="All by default.")
@click.option("--methods", multiple=True, type=click.Choice(list(METHODS)), help="Of the main part; all by default.")
@click.option("--seeds", default=5, show_default=True, help="How many.")
@click.option("--minutes", default=float("inf"), help="Begin nothing new after so long.")
@click.option("--split", default="test", type=click.Choice(["val", "test"]), help="Judging tasks.", show_default=True)
@click.option("--work", default=ROOT / "runs" / "transfer", type=click.Path(path_type=Path), help="Folder of results.")
@click.option("--cap", default=0, help="Programs of a task at most; 0 takes all.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the document.")
def main(
    blocks: tuple[str, ...], targets: tuple[str, ...], methods: tuple[str, ...], seeds: int, minutes: float,
    split: str, work: Path, cap: int, as_json: bool,
) -> None:  # fmt: skip
    """Judge every method on every target; with test tasks, writes docs/benchmarks/transfer.json."""
    import torch

    torch.set_num_threads(1)
    started = time.time()
    runs = Runs(work, split, time.monotonic() + 60 * minutes, cap)
    targets, blocks, numbers = targets or tuple(TARGETS), blocks or BLOCKS, tuple(range(seeds))
    asked = {
        "main": list(questions(targets, methods or tuple(METHODS), numbers)),
        "sources": list(order_questions(targets, numbers)),
        "papers": list(paper_questions(targets, numbers)),
    }
    asked = {name: listed if name in blocks else [] for name, listed in asked.items()}
    found = details(runs, asked, numbers if "forgetting" in blocks else ())
    figures = summary(found["rows"], found.get("lost", {}).get(OURS, {}))
    if split == "test":
        finish("transfer", figures, found, list(numbers), as_json, started)
        return
    for name, value in figures.items():
        click.echo(f"{name:<40} {value:.4f}")


if __name__ == "__main__":
    main()
