"""Samplers side by side: what a model learns from 2, 5, 10 and 20% of a corpus, chosen by each of them.

    python -m scripts.benchmarks sampling --minutes 70 --json

Every sampler starts from the same random quarter of its budget and picks the rest in three rounds, the model
being updated after each; TileNet learns, from random weights and from those of another device. Test tasks judge;
choices are made with `--split val`, which prints the means and writes no document. A second part
has the tasks ranked of which programs are measured; `--shares ""` or `--labels ""` runs one part alone.
Each result is a line of `results.jsonl` or `in-task.jsonl` in `runs/sampling`, so that a run that was killed goes on,
and a part can be run alone: the figures are of all lines, and the document names what is missing.
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
WANTED_SEEDS = 5


class Key(NamedTuple):
    """One result: what a model learns from a share of a corpus, judged on other tasks."""

    corpus: str
    block: str
    share: float
    seed: int
    sampler: str


class InTaskKey(NamedTuple):
    """One result: what a model learns from a few programs of each judging task."""

    corpus: str
    labels: int
    seed: int
    sampler: str


def keys(seeds: Iterable[int], shares: Iterable[float]) -> Iterator[Key]:
    """Everything to be run: a tenth of every corpus first, then the other shares, seed by seed."""
    for share, seed, corpus, block in product((*shares, 1.0), seeds, SOURCES, ("scratch", "pretrained")):
        for sampler in SAMPLERS if share < 1 else (ALL,):
            yield Key(corpus, block, share, seed, sampler)


def in_task_keys(seeds: Iterable[int], labels: Iterable[int]) -> Iterator[InTaskKey]:
    """Everything to be run, seed by seed, so that a run that is cut has whole tables of fewer seeds."""
    for seed, corpus, count, sampler in product(seeds, SOURCES, labels, SAMPLERS):
        yield InTaskKey(corpus, count, seed, sampler)


def run(key: Key, material: Material, known: dict[Any, Any]) -> dict[str, Any]:
    """One result; `known` has the models of the random starts of this corpus and block."""
    data, test, cost = material.data.own, material.judges, MeasuringCost(*material.cost)
    budget = max(8, round(key.share * len(data)))
    sampler = create_sampler("random" if key.sampler == ALL else key.sampler)
    learn = material.learner(key.block)
    picked = run_rounds(data, material.ops(data), sampler, budget, key.seed, learn, cost, known)
    scores = evaluate_scores(picked.model.score(test.features), test.latency, test.group, test.task_weights)
    return {
        "programs": budget,
        "scores": {k: round(v, 5) for k, v in scores.items()},
        "measuring_seconds": round(float(cost.seconds(data.latency[picked.indices]).sum()), 1),
    }


def fill(journal: Journal, wanted: Iterable[Any], one: Any, split: str, clock: Clock) -> list[dict[str, Any]]:
    """Run what the journal lacks, until the time is over; return all its results.

    Results that differ by their sampler alone share the models of their starts.
    """
    material, group, known = lru_cache(len(SOURCES))(Material), None, {}
    for key in wanted:
        if key[:-1] != group:
            group, known = key[:-1], {}
        journal.get(lambda k=key, m=known: one(k, material(k.corpus, split), m), clock, **key._asdict())
    return journal.rows()


def left(journal: Journal, wanted: Sequence[Any], what: str) -> list[str]:
    """What the journal lacks, for `not_done` of the details."""
    return lacking(sum(journal.find(**key._asdict()) is None for key in wanted), len(wanted), what)


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
    folder = work if split == "test" else work / split
    results, results_in_task = Journal(folder / "results.jsonl"), Journal(folder / "in-task.jsonl")
    rows = fill(results, keys(seeds, shares) if shares else (), run, split, clock)
    in_task = common_means(fill(results_in_task, in_task_keys(seeds, labels), run_in_task, split, clock), ("labels",))
    if split == "val":
        click.echo(json.dumps({"summary": summary(rows), "in_task": in_task}, indent=2))
        return None
    planned, planned_in_task = [*keys(range(WANTED_SEEDS), SHARES)], [*in_task_keys(range(WANTED_SEEDS), LABELS)]
    details = {
        "means": means(rows),
        "cells": by_cell(rows),
        "budgets": budgets(rows),
        "table": table(rows),
        "in_task": in_task,
        "not_done": [
            *left(results, planned, "results"),
            *left(results_in_task, planned_in_task, "results of the tasks that are measured"),
        ],
    }
    return summary(rows), details, sorted({row["seed"] for row in rows})
