"""Samplers side by side: what a model learns from 2, 5, 10 and 20% of a corpus, chosen by each of them.

    python -m scripts.benchmarks sampling --minutes 70 --json

Every sampler starts from the same random quarter of its budget and picks the rest in three rounds, the model
being updated after each; TileNet learns, from random weights and from those of another device. Test tasks judge;
choices are made with `--split val`, which prints the means and writes no document. A second part
has the tasks ranked of which programs are measured; `--shares ""` or `--labels ""` runs one part alone.
Each result is a line of `results.jsonl` or `in-task.jsonl` in `runs/sampling`, so that a run that was killed goes on,
and a part can be run alone: the figures are of all lines with as many programs a task, and the document names what is
missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np
from tchub.zoo.adapt.sampling import MeasuringCost, Pool, PoolPredictions, create_sampler
from tchub.zoo.training import evaluate_scores

from scripts.benchmarks.common import (
    Clock,
    Document,
    Journal,
    benchmark,
    kept,
    lacking,
    note,
    read_json,
    work_option,
)
from scripts.benchmarks.sampling.figures import ALL, budgets, by_cell, in_task_means, means, summary, table
from scripts.benchmarks.sampling.results import (
    LABELS,
    PER_TASK,
    SAMPLERS,
    SHARES,
    SOURCES,
    WANTED_SEEDS,
    InTaskKey,
    Key,
    by_key,
    in_task_keys,
    keys,
)
from scripts.benchmarks.sampling.rounds import Material, run_in_task, run_rounds

# Of the made-up pool that is timed: programs, tasks, operators.
POOL, TASKS = 1_000_000, 1000
OPS = ("conv2d", "depthwise", "matmul", "batch_matmul", "softmax", "pool", "norm", "reduce")


def run(key: Key, material: Material, known: dict[Any, Any]) -> dict[str, Any]:
    """One result; `known` has the models of the random starts of this corpus and block."""
    data, test, (build, runs) = material.data.own, material.judges, material.cost
    budget = max(8, round(key.share * len(data)))
    sampler = create_sampler("random" if key.sampler == ALL else key.sampler)
    learn, cost = material.learner(key.block), MeasuringCost(build, runs)
    picked = run_rounds(data, material.ops, sampler, budget, key.seed, learn, cost, known)
    scores = evaluate_scores(picked.model.score(test.features), test.latency, test.group, test.task_weights)
    return {
        "programs": budget,
        "scores": {k: round(v, 5) for k, v in scores.items()},
        "measuring_seconds": round(float(cost.seconds(data.latency[picked.indices]).sum()), 1),
        "select_seconds": round(picked.select_seconds, 2),
        "learn_seconds": round(picked.learn_seconds, 2),
    }


def fill(journal: Journal, wanted: list[Any], run_one: Callable[..., dict[str, Any]], split: str, clock: Clock) -> None:
    """Run what the journal lacks, until the time is over."""
    done = by_key(journal.rows(), type(wanted[0]), wanted[0].per_task) if wanted else {}
    missing = [key for key in wanted if key not in done]
    material = lru_cache(len(SOURCES))(Material)
    group, known = None, {}
    for number, key in enumerate(missing):
        if clock.is_over:
            note(f"{len(missing) - number} results are left for another run")
            return
        if key.group != group:
            group, known = key.group, {}
        journal.get(lambda k=key, m=known: run_one(k, material(k.corpus, k.per_task, split), m), **vars(key))
        note(f"{number + 1}/{len(missing)} {key}")


def _numbers(kind: type[Any]) -> Callable[..., tuple[Any, ...]]:
    return lambda _context, _option, text: tuple(kind(word) for word in text.split(",") if word)


@benchmark(
    "sampling",
    click.option("--only", multiple=True, type=click.Choice(list(SOURCES)), default=tuple(SOURCES)),
    click.option("--seeds", default="0,1,2,3,4", show_default=True, callback=_numbers(int)),
    click.option("--shares", default=",".join(map(str, SHARES)), show_default=True, callback=_numbers(float)),
    click.option("--labels", default=",".join(map(str, LABELS)), show_default=True, callback=_numbers(int)),
    click.option("--minutes", type=float, help="Begin nothing new after so long."),
    click.option("--per-task", default=PER_TASK, show_default=True, help="Training programs of a task at most."),
    click.option("--pool", default=POOL, show_default=True, help="Programs of the pool that is timed; 0: none."),
    click.option("--split", default="test", type=click.Choice(["val", "test"]), help="Judging tasks."),
    work_option("sampling"),
)
def main(
    only: tuple[str, ...],
    seeds: tuple[int, ...],
    shares: tuple[float, ...],
    labels: tuple[int, ...],
    minutes: float | None,
    per_task: int,
    pool: int,
    split: str,
    work: Path,
) -> Document | None:
    """Compare the samplers and write docs/benchmarks/sampling.json."""
    import torch

    torch.set_num_threads(1)
    clock, folder = Clock(minutes), work if split == "test" else work / split
    journal, in_task = Journal(folder / "results.jsonl"), Journal(folder / "in-task.jsonl")
    fill(journal, list(keys(only, seeds, shares, per_task)) if shares else [], run, split, clock)
    fill(in_task, list(in_task_keys(only, seeds, labels, per_task)), run_in_task, split, clock)
    done = by_key(journal.rows(), Key, per_task)
    done_in_task = by_key(in_task.rows(), InTaskKey, per_task)
    rows, own = list(done.values()), list(done_in_task.values())
    if split == "val":
        click.echo(json.dumps({"summary": summary(rows), "in_task": in_task_means(own)}, indent=2))
        return None
    file = work / f"pool-{pool or POOL}.json"
    if pool:
        kept(file, lambda: time_samplers(pool))
    timed = read_json(file) if file.is_file() else []
    planned = set(keys(SOURCES, range(WANTED_SEEDS), SHARES, per_task))
    planned_in_task = set(in_task_keys(SOURCES, range(WANTED_SEEDS), LABELS, per_task))
    details = {
        "programs_per_task": per_task,
        "results": len(rows),
        "of": len(planned),
        "sources": SOURCES,
        "means": means(rows),
        "cells": by_cell(rows),
        "budgets": budgets(rows),
        "table": table(rows),
        "in_task": in_task_means(own),
        "pool": timed,
        "not_done": [
            *lacking(len(planned - done.keys()), len(planned), "results"),
            *lacking(
                len(planned_in_task - done_in_task.keys()),
                len(planned_in_task),
                "results of the tasks that are measured",
            ),
            *([] if timed else ["the time to pick from a large pool"]),
        ],
    }
    return summary(rows), details, sorted({row["seed"] for row in rows})


def time_samplers(size: int) -> list[dict[str, Any]]:
    """Seconds of `select`, the scores and embeddings being there, on a made-up pool of tasks of unlike sizes."""
    rng = np.random.default_rng(0)
    task = np.sort(rng.choice(TASKS, size=size, p=rng.dirichlet(np.full(TASKS, 5.0))))
    pool = Pool(task, tuple(rng.choice(OPS, size=TASKS).tolist()))
    embeddings = rng.normal(size=(size, 64)).astype(np.float32)
    scores = embeddings[:, :8].sum(axis=1).astype(np.float64)
    labeled = rng.choice(size, 1000, replace=False)
    latency = np.exp(-scores[labeled] / 8 + 0.1 * rng.normal(size=1000)) / 1000
    rows = []
    for name in SAMPLERS:
        for budget in (size // 1000, size // 10):
            view = PoolPredictions(
                scores, labeled, latency, lambda: embeddings, task=task, features=embeddings[:, None]
            )
            began = time.perf_counter()
            picked = create_sampler(name).select(pool, labeled, budget, view, np.random.default_rng(0))
            seconds = round(time.perf_counter() - began, 2)
            rows.append({"sampler": name, "pool": size, "budget": len(picked.indices), "seconds": seconds})
            note(str(rows[-1]))
    return rows
