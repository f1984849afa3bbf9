"""Samplers side by side: what a model learns from 2, 5, 10 and 20% of a corpus, chosen by each of them.

    python -m scripts.benchmarks sampling --minutes 70 --json

Every sampler starts from the same random quarter of its budget and picks the rest in three rounds, the model
being updated after each; TileNet learns, from random weights and from those of another device. Test tasks judge;
choices are made with `--split val`, which prints the means and writes no document. A second part
has the tasks ranked of which programs are measured; `--shares ""` or `--labels ""` runs one part alone.
Each result is a line of `results.jsonl` in `runs/sampling`, so that a run that was killed goes on, and a part can be
run alone: the figures are of all lines, and the document names what is missing.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click
from tchub.zoo.adapt.sampling import MeasuringCost, create_sampler
from tchub.zoo.training import evaluate_scores

from scripts.benchmarks.common import CLOCK, Clock, Document, Journal, benchmark, lacking, work_option
from scripts.benchmarks.sampling.figures import ALL, budgets, by_cell, common_means, means, summary, table
from scripts.benchmarks.sampling.rounds import SOURCES, Material, run_in_task, run_rounds

SAMPLERS = ("random", "stratified", "fasor", "rdu", "rdu+", "strata")
SHARES = (0.1, 0.05, 0.2, 0.02)
# Labels of each task, where the tasks that are measured judge.
LABELS = (8, 4, 16)
# Weights from which a model learns a share of a corpus; and what stands for them where the tasks that judge teach.
BLOCKS, IN_TASK = ("scratch", "pretrained"), "in-task"
WANTED_SEEDS = 5


class Key(NamedTuple):
    """One result: what a model learns from a share of a corpus, judged on other tasks.

    With `labels` it learns from so many programs of each judging task instead; `block` and `share` say nothing then.
    """

    corpus: str
    block: str
    share: float
    labels: int
    seed: int
    sampler: str


def keys(seeds: Iterable[int], shares: Sequence[float], labels: Sequence[int]) -> Iterator[Key]:
    """Everything to be run: a tenth of every corpus first, then the other shares, seed by seed.

    At last the tasks that are measured, seed by seed too, so that a run that is cut has whole tables of fewer seeds.
    """
    for share, seed, corpus, block in product((*shares, 1.0) if shares else (), seeds, SOURCES, BLOCKS):
        for sampler in SAMPLERS if share < 1 else (ALL,):
            yield Key(corpus, block, share, 0, seed, sampler)
    for seed, corpus, count, sampler in product(seeds, SOURCES, labels, SAMPLERS):
        yield Key(corpus, IN_TASK, 0.0, count, seed, sampler)


def run(key: Key, material: Material, known: dict[Any, Any]) -> dict[str, Any]:
    """One result; `known` has the models of the starts of results that differ by their sampler alone."""
    if key.labels:
        return run_in_task(key, material, known)
    data, test, cost = material.data.own, material.judges, MeasuringCost(*material.cost)
    budget = max(8, round(key.share * len(data)))
    sampler = create_sampler("random" if key.sampler == ALL else key.sampler)
    learn = material.learner(key.block)
    model, picked = run_rounds(data, material.ops(data), sampler, budget, key.seed, learn, cost, known)
    scores = evaluate_scores(model.score(test.features), test.latency, test.group, test.task_weights)
    return {
        "programs": budget,
        "scores": {k: round(v, 5) for k, v in scores.items()},
        "measuring_seconds": round(float(cost.seconds(data.latency[picked]).sum()), 1),
    }


def fill(journal: Journal, wanted: Iterable[Key], split: str, clock: Clock) -> None:
    """Run what the journal lacks, until the time is over."""
    material, group, known = lru_cache(len(SOURCES))(Material), None, {}
    for key in wanted:
        if key[:-1] != group:
            group, known = key[:-1], {}
        journal.get(lambda k=key, m=known: run(k, material(k.corpus, split), m), clock, **key._asdict())


def _numbers(kind: type[Any]) -> Callable[..., tuple[Any, ...]]:
    return lambda _context, _option, text: tuple(kind(word) for word in text.split(",") if word)


@benchmark(
    "sampling",
    click.option("--seeds", default="0,1,2,3,4", show_default=True, callback=_numbers(int)),
    click.option("--shares", default=",".join(map(str, SHARES)), show_default=True, callback=_numbers(float)),
    click.option("--labels", default=",".join(map(str, LABELS)), show_default=True, callback=_numbers(int)),
    CLOCK,
    click.option("--split", default="test", type=click.Choice(["val", "test"]), help="Judging tasks."),
    work_option("sampling"),
)
def main(
    seeds: tuple[int, ...], shares: tuple[float, ...], labels: tuple[int, ...], clock: Clock, split: str, work: Path
) -> Document | None:
    """Compare the samplers and write docs/benchmarks/sampling.json."""
    import torch

    torch.set_num_threads(1)
    journal = Journal((work if split == "test" else work / split) / "results.jsonl")
    fill(journal, keys(seeds, shares, labels), split, clock)
    rows = [row for row in journal.rows() if not row["labels"]]
    in_task = common_means([row for row in journal.rows() if row["labels"]], ("labels",))
    if split == "val":
        click.echo(json.dumps({"summary": summary(rows), "in_task": in_task}, indent=2))
        return None
    planned = [*keys(range(WANTED_SEEDS), SHARES, LABELS)]
    missing = sum(journal.find(**key._asdict()) is None for key in planned)
    details = {
        "means": means(rows),
        "cells": by_cell(rows),
        "budgets": budgets(rows),
        "table": table(rows),
        "in_task": in_task,
        "not_done": lacking(missing, len(planned), "results"),
    }
    return summary(rows), details, sorted({row["seed"] for row in rows})
