"""What other devices' programs are worth on a new one: methods x targets x protocols, many seeds.

    python -m scripts.zoo.build import --data DIR
    python -m scripts.benchmarks transfer --json

Each result and each trained model is kept under `runs/transfer`, so that a run that was killed goes on, and a part
can be run alone: the document is always of everything that is kept, and names what is missing. Choices between
methods are made with `--split val`, which writes no document.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import Clock, Document, benchmark, lacking, work_option
from scripts.benchmarks.transfer.data import SHARE, TARGETS
from scripts.benchmarks.transfer.devices import CHAIN, OURS, VARIANTS, devices_block
from scripts.benchmarks.transfer.figures import difference_rows, mean_rows, ratio_rows, source_rows, summary
from scripts.benchmarks.transfer.methods import ABLATION, METHODS, PAPER_METHODS, paper_rows
from scripts.benchmarks.transfer.runs import (
    LABELS,
    WANTED_SEEDS,
    Question,
    Runs,
    not_done,
    order_questions,
    paper_questions,
    questions,
)

# What the page reads of a row.
_FACTS, _SCORES = ("target", "seen", "protocol", "labels", "method", "seeds"), ("pairwise", "mean_top1")
BLOCKS = ("main", "sources", "forgetting", "papers")


def plan(targets: tuple[str, ...], methods: tuple[str, ...], seeds: Sequence[int]) -> dict[str, list[Question]]:
    """The questions of every part that has some."""
    return {
        "main": list(questions(targets, methods, seeds)),
        "sources": list(order_questions(targets, seeds)),
        "papers": list(paper_questions(targets, seeds)),
    }


def document(runs: Runs, seeds: Sequence[int]) -> Document:
    """Summary, details and seeds of all that is kept, of these seeds and of as many as are wanted of everything."""
    runs.clock = Clock(0)  # nothing new
    every = range(max([WANTED_SEEDS, *(seed + 1 for seed in seeds)]))
    parts = {part: runs.collect(asked) for part, asked in plan(tuple(TARGETS), tuple(METHODS), every).items()}
    rows, ordered, papers = (mean_rows(answers) for answers, _ in parts.values())
    devices = devices_block(runs, every)
    details = {
        "share": SHARE,
        "labels": list(LABELS),
        "targets": {target: list(sources) for target, sources in TARGETS.items()},
        "methods": {name: method.title for name, method in METHODS.items()},
        "columns": [*_FACTS, *_SCORES],
        "rows": [[*(row[name] for name in _FACTS), *(row[name]["values"] for name in _SCORES)] for row in rows],
        "differences": difference_rows(rows),
        "label_ratios": ratio_rows(rows),
        "sources": source_rows(rows, ordered),
        "papers": list(paper_rows(papers, PAPER_METHODS)),
        "ablation": list(paper_rows(papers, ABLATION)),
        **devices,
        "not_done": [line for part in parts.values() for line in not_done(*part)] + devices_not_done(devices),
    }
    used = {answer["seed"] for answers, _ in parts.values() for answer in answers}
    used.update(*devices.get("forgetting_seeds", {}).values())
    lost = {name: one["mean"] for name, one in devices.get("lost", {}).get(OURS, {}).items()}
    return summary(rows, lost), _without_values(details), sorted(used)


def _without_values(value: Any) -> Any:
    """Leave the single seeds out of means; the rows keep them, as lists."""
    if isinstance(value, dict):
        return {key: _without_values(item) for key, item in value.items() if key != "values"}
    return [_without_values(item) for item in value] if isinstance(value, list) else value


def devices_not_done(devices: dict[str, Any]) -> list[str]:
    """What is missing of forgetting, and of the cost of a further device."""
    seeds = {name: len(devices.get("forgetting_seeds", {}).get(name, ())) for name in VARIANTS}
    left = [(WANTED_SEEDS - count, WANTED_SEEDS, f"seeds of a base with {name}") for name, count in seeds.items()]
    left.append((len(CHAIN) - len(devices.get("cost", ())), len(CHAIN), "numbers of devices, of the cost"))
    return [line for one in left for line in lacking(*one)]


@benchmark(
    "transfer",
    click.option("--only", "blocks", multiple=True, type=click.Choice(BLOCKS), default=BLOCKS, help="Parts to run."),
    click.option("--targets", multiple=True, type=click.Choice(list(TARGETS)), default=tuple(TARGETS)),
    click.option("--methods", multiple=True, type=click.Choice(list(METHODS)), default=tuple(METHODS)),
    click.option("--seeds", default=WANTED_SEEDS, show_default=True, help="How many."),
    click.option("--minutes", type=float, help="Begin nothing new after so long."),
    click.option("--split", default="test", type=click.Choice(["val", "test"]), help="Judging tasks."),
    click.option("--cap", default=0, help="Programs of a task at most; 0 takes all.", show_default=True),
    work_option("transfer"),
)
def main(
    blocks: tuple[str, ...],
    targets: tuple[str, ...],
    methods: tuple[str, ...],
    seeds: int,
    minutes: float | None,
    split: str,
    cap: int,
    work: Path,
) -> Document | None:
    """Judge every method on every target; with test tasks, writes docs/benchmarks/transfer.json."""
    import torch

    torch.set_num_threads(1)
    runs = Runs(work, split, Clock(minutes), cap)
    for part, asked in plan(targets, methods, range(seeds)).items():
        if part in blocks:
            runs.collect(asked)
    if "forgetting" in blocks:
        devices_block(runs, range(seeds))
    figures, details, used = document(runs, range(seeds))
    if split == "test":
        return figures, details, used
    for name, value in figures.items():
        click.echo(f"{name:<40} {value:.4f}")
    return None
