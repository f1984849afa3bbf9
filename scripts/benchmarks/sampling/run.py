"""Samplers side by side: what a model learns from 2, 5, 10 and 20% of a corpus, chosen by each of them.

    python -m scripts.benchmarks sampling --minutes 70 --json

Every sampler starts from the same random quarter of its budget and picks the rest in three rounds, the model
being updated after each; TileNet learns, from random weights and from those of another device. Test tasks judge;
choices are made with `--split val`, which prints the means and writes no document. A second part (`sampling_in_task`)
has the tasks ranked of which programs are measured; `--shares ""` or `--labels ""` runs one part alone.
Each result is a line of `results.jsonl` or `in-task.jsonl` in `runs/sampling`, so that a run that was killed goes on,
and a part can be run alone: the figures are of all lines with as many programs a task, and the document names what is
missing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from scripts.benchmarks.common import ROOT, finish
from scripts.benchmarks.sampling.figures import ALL, budgets, by_cell, means, summary, table
from scripts.benchmarks.sampling.in_task import (
    LABELS,
    InTaskKey,
    in_task_keys,
    in_task_means,
    in_task_not_done,
    run_in_task,
)
from scripts.benchmarks.sampling.results import (
    PER_TASK,
    SAMPLERS,
    SHARES,
    SOURCES,
    WANTED_SEEDS,
    Journal,
    Key,
    kept_rows,
    key_of,
    keys,
    not_done,
)
from scripts.benchmarks.sampling.rounds import Material, run_rounds
from scripts.benchmarks.tuning.runs import read_json, write_json

POOL = 1_000_000


def run(key: Key, material: Material, known: dict[tuple[int, int], Any]) -> dict[str, Any]:
    """One result; `known` has the models of the random starts of this corpus and block."""
    from tchub.zoo.adapt.sampling import MeasuringCost, create_sampler
    from tchub.zoo.training import evaluate_scores

    data, test, (build, runs) = material.data.own, material.judges, material.cost
    budget = max(8, round(key.share * len(data)))
    name = "random" if key.sampler == ALL else key.sampler
    learn, cost = material.learner(key.block), MeasuringCost(build, runs)
    picked = run_rounds(data, material.ops, create_sampler(name), budget, key.seed, learn, cost, known)
    scores = evaluate_scores(picked.model.score(test.features), test.latency, test.group, test.task_weights)
    return vars(key) | {
        "programs": budget,
        "scores": {k: round(v, 5) for k, v in scores.items()},
        "measuring_seconds": round(float(cost.seconds(data.latency[picked.indices]).sum()), 1),
        "select_seconds": round(picked.select_seconds, 2),
        "learn_seconds": round(picked.learn_seconds, 2),
    }


def fill(journal: Journal, wanted: list[Any], run_one: Callable[..., dict[str, Any]], job: Job) -> None:
    """Run what the journal lacks, until the time is over."""
    done = {key_of(row, type(wanted[0])) for row in journal.rows()} if wanted else set()
    missing = [key for key in wanted if key not in done]
    group, known, began = None, {}, time.time()
    for number, key in enumerate(missing):
        if time.time() > job.deadline:
            click.echo(f"{len(missing) - number} results are left for another run", err=True)
            return
        if key.group != group:
            group, known = key.group, {}
        material = job.materials.setdefault(key.corpus, Material(key.corpus, key.per_task, job.split))
        journal.add(run_one(key, material, known))
        left = (time.time() - began) / (number + 1) * (len(missing) - number - 1)
        click.echo(f"{number + 1}/{len(missing)} {key}; {left / 60:.0f} min left", err=True)


@dataclass(frozen=True)
class Job:
    """What all results of one call share: the judging tasks, the time at which nothing new is begun, what was read."""

    split: str
    deadline: float
    materials: dict[str, Material] = field(default_factory=dict)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(SOURCES)), help="Only these corpora.")
@click.option("--seeds", default="0,1,2,3,4", show_default=True, help="Seeds, comma-separated.")
@click.option("--shares", default=",".join(map(str, SHARES)), show_default=True, help="Of the training programs.")
@click.option(
    "--labels",
    default=",".join(map(str, LABELS)),
    show_default=True,
    help="Of each task, where the tasks measured judge.",
)
@click.option("--minutes", default=0.0, help="Stop after this time; 0 runs all.")
@click.option("--per-task", default=PER_TASK, show_default=True, help="Training programs of a task at most.")
@click.option("--pool", default=POOL, show_default=True, help="Programs of the pool that is timed; 0 times none.")
@click.option("--split", default="test", type=click.Choice(["val", "test"]), help="Judging tasks.", show_default=True)
@click.option("--work", default=ROOT / "runs" / "sampling", type=click.Path(path_type=Path), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the whole document.")
def main(
    only: tuple[str, ...],
    seeds: str,
    shares: str,
    labels: str,
    minutes: float,
    per_task: int,
    pool: int,
    split: str,
    work: Path,
    as_json: bool,
) -> None:
    """Compare the samplers and write docs/benchmarks/sampling.json."""
    import torch

    torch.set_num_threads(1)
    began, folder = time.time(), work if split == "test" else work / split
    journal, in_task = Journal(folder), Journal(folder, "in-task.jsonl")
    used, corpora = tuple(int(seed) for seed in seeds.split(",")), only or tuple(SOURCES)
    chosen = tuple(float(share) for share in shares.split(",") if share)
    counts = tuple(int(count) for count in labels.split(",") if count)
    job = Job(split, began + 60 * minutes if minutes else math.inf)
    fill(journal, list(keys(corpora, used, chosen, per_task)) if chosen else [], run, job)
    fill(in_task, list(in_task_keys(corpora, used, counts, per_task)), run_in_task, job)
    rows, own = kept_rows(journal, per_task), kept_rows(in_task, per_task, InTaskKey)
    if split == "val":
        click.echo(json.dumps({"summary": summary(rows), "in_task": in_task_means(own)}, indent=2))
        return
    timed = pool_rows(work, pool)
    found = {"programs_per_task": per_task, **details(rows, per_task), "in_task": in_task_means(own), "pool": timed}
    found["not_done"] += in_task_not_done({key_of(row, InTaskKey) for row in own}, per_task, WANTED_SEEDS)
    if not timed:
        found["not_done"].append("the time to pick from a large pool")
    finish("sampling", summary(rows), found, sorted({row["seed"] for row in rows}), as_json, began)


def pool_rows(work: Path, size: int) -> list[dict[str, Any]]:
    """The times of picking from a pool of a size, made once; with size 0 those of the usual size, if they are there."""
    file = work / f"pool-{size or POOL}.json"
    if size and not file.is_file():
        write_json(file, time_samplers(size, (size // 1000, size // 10), SAMPLERS))
    return read_json(file) if file.is_file() else []


def details(rows: list[dict[str, Any]], per_task: int) -> dict[str, Any]:
    """The tables, and what is missing of the whole plan."""
    planned = list(keys(tuple(SOURCES), tuple(range(WANTED_SEEDS)), SHARES, per_task))
    done = {key_of(row) for row in rows}
    return {
        "results": len(rows),
        "of": len(planned),
        "sources": SOURCES,
        "means": means(rows),
        "cells": by_cell(rows),
        "budgets": budgets(rows),
        "table": table(rows),
        "not_done": not_done([key for key in planned if key not in done]),
    }


if __name__ == "__main__":
    main()


OPS = ("conv2d", "depthwise", "matmul", "batch_matmul", "softmax", "pool", "norm", "reduce")


def time_samplers(
    size: int, budgets: tuple[int, ...], names: tuple[str, ...], tasks: int = 1000
) -> list[dict[str, Any]]:
    """Seconds of `select`, the scores and embeddings being there, on a made-up pool.

    Args:
        size: programs; their tasks have unlike sizes.
        budgets: programs to pick.
        names: of samplers.
        tasks: in the pool.
    """
    from tchub.zoo.adapt.sampling import Pool, PoolPredictions, create_sampler

    rng = np.random.default_rng(0)
    task = np.sort(rng.choice(tasks, size=size, p=rng.dirichlet(np.full(tasks, 5.0))))
    pool = Pool(task, tuple(rng.choice(OPS, size=tasks).tolist()))
    embeddings = rng.normal(size=(size, 64)).astype(np.float32)
    scores = embeddings[:, :8].sum(axis=1).astype(np.float64)
    labeled = rng.choice(size, 1000, replace=False)
    latency = np.exp(-scores[labeled] / 8 + 0.1 * rng.normal(size=1000)) / 1000
    rows = []
    for name in names:
        for budget in budgets:
            view = PoolPredictions(
                scores, labeled, latency, lambda: embeddings, task=task, features=embeddings[:, None]
            )
            began = time.perf_counter()
            picked = create_sampler(name).select(pool, labeled, budget, view, np.random.default_rng(0))
            seconds = time.perf_counter() - began
            rows.append({"sampler": name, "pool": size, "budget": len(picked.indices), "seconds": round(seconds, 2)})
    return rows
