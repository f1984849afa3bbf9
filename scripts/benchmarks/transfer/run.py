"""What other devices' programs are worth on a new one: methods x targets x protocols, many seeds.

    python -m scripts.zoo.build import --data DIR
    python -m scripts.benchmarks transfer --json

Each result and each trained model is kept under `runs/transfer`, so that a run that was killed goes on, and a part
can be run alone: the document is always of everything that is kept, and names what is missing. Choices between
methods are made with `--split val`, which writes no document.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import ROOT, finish
from scripts.benchmarks.transfer.data import SHARE, TARGETS
from scripts.benchmarks.transfer.devices import CHAIN, OURS, VARIANTS, devices_block
from scripts.benchmarks.transfer.figures import difference_rows, mean_rows, ratio_rows, source_rows, summary
from scripts.benchmarks.transfer.methods import ABLATION, METHODS, PAPER_METHODS, paper_rows
from scripts.benchmarks.transfer.runs import (
    LABELS,
    WANTED_SEEDS,
    Kept,
    Question,
    Runs,
    collect,
    order_questions,
    paper_questions,
    questions,
    shortfalls,
    used_seeds,
)

# What the page reads of a row.
_FACTS, _SCORES = ("target", "seen", "protocol", "labels", "method", "seeds"), ("pairwise", "mean_top1")
BLOCKS = ("main", "sources", "forgetting", "papers")


def plan(targets: tuple[str, ...], methods: tuple[str, ...], seeds: tuple[int, ...]) -> dict[str, list[Question]]:
    """The questions of every part that has some."""
    return {
        "main": list(questions(targets, methods, seeds)),
        "sources": list(order_questions(targets, seeds)),
        "papers": list(paper_questions(targets, seeds)),
    }


def details(kept: dict[str, Kept], devices: dict[str, Any]) -> dict[str, Any]:
    """Every table, the facts of the protocols, and what is missing."""
    rows, ordered, papers = (mean_rows(kept[part].answers) for part in ("main", "sources", "papers"))
    tables = {
        "share": SHARE,
        "labels": list(LABELS),
        "targets": {target: list(sources) for target, sources in TARGETS.items()},
        "methods": {name: method.title for name, method in METHODS.items()},
        "columns": [*_FACTS, *_SCORES],
        "rows": [_shown(row) for row in rows],
        "differences": difference_rows(rows),
        "label_ratios": ratio_rows(rows),
        "sources": source_rows(rows, ordered),
        "papers": list(paper_rows(papers, PAPER_METHODS)),
        "ablation": list(paper_rows(papers, ABLATION)),
        **devices,
        "not_done": [*not_done(kept), *devices_not_done(devices)],
    }
    return _without_values(tables)


def _without_values(value: Any) -> Any:
    """Leave the single seeds out of means; the rows keep them, as lists."""
    if isinstance(value, dict):
        return {key: _without_values(item) for key, item in value.items() if key != "values"}
    return [_without_values(item) for item in value] if isinstance(value, list) else value


def _shown(row: dict[str, Any]) -> list[Any]:
    return [*(row[name] for name in _FACTS), *(row[name]["values"] for name in _SCORES)]


def not_done(kept: dict[str, Kept]) -> Iterator[str]:
    """What is missing of five seeds of everything, the plan's own limits among it."""
    fixed = [name for name, method in METHODS.items() if method.seeds == 1]
    for part, found in kept.items():
        yield from (
            words if part == "main" else f"{part}: {words}"
            for words in shortfalls(found, fixed=fixed, targets=list(TARGETS))
        )


def devices_not_done(devices: dict[str, Any]) -> Iterator[str]:
    """The same of forgetting, and of the cost of a further device."""
    for variant in VARIANTS:
        lack = WANTED_SEEDS - len(devices.get("forgetting_seeds", {}).get(variant, ()))
        if lack > 0:
            yield f"forgetting: {lack} of {WANTED_SEEDS} seeds of a base with {variant}"
    if lack := len(CHAIN) - len(devices.get("cost", ())):
        yield f"cost: {lack} of {len(CHAIN)} numbers of devices"


def document(runs: Runs, seeds: Sequence[int]) -> tuple[dict[str, Any], dict[str, Any], list[int]]:
    """Summary, details and seeds of all that is kept, of these seeds and of as many as are wanted of everything."""
    runs.deadline = -math.inf  # nothing new
    every = tuple(range(max([WANTED_SEEDS, *(seed + 1 for seed in seeds)])))
    kept = {part: collect(runs, asked) for part, asked in plan(tuple(TARGETS), tuple(METHODS), every).items()}
    devices = devices_block(runs, every)
    found = details(kept, devices)
    lost = {name: one["mean"] for name, one in devices.get("lost", {}).get(OURS, {}).items()}
    used = {*used_seeds(*(part.answers for part in kept.values()))}.union(*devices.get("forgetting_seeds", {}).values())
    return summary(found["rows"], lost), found, sorted(used)


@click.command()
@click.option("--only", "blocks", multiple=True, type=click.Choice(BLOCKS), help="Parts to run; all by default.")
@click.option("--targets", multiple=True, type=click.Choice(list(TARGETS)), help="All by default.")
@click.option("--methods", multiple=True, type=click.Choice(list(METHODS)), help="Of the main part; all by default.")
@click.option("--seeds", default=WANTED_SEEDS, show_default=True, help="How many.")
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
    numbers = tuple(range(seeds))
    for part, asked in plan(targets or tuple(TARGETS), methods or tuple(METHODS), numbers).items():
        if part in (blocks or BLOCKS):
            collect(runs, asked)
    if "forgetting" in (blocks or BLOCKS):
        devices_block(runs, numbers)
    figures, found, used = document(runs, numbers)
    if split == "test":
        finish("transfer", figures, found, used, as_json, started)
        return
    for name, value in figures.items():
        click.echo(f"{name:<40} {value:.4f}")


if __name__ == "__main__":
    main()
