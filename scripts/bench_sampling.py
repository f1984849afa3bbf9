"""Samplers side by side: what a model learns from 2, 5, 10 and 20% of a corpus, chosen by each of them.

    python scripts/bench_sampling.py --minutes 70 --json

Every sampler starts from the same random quarter of its budget and picks the rest in three rounds, the model
being updated after each; TileNet learns, from random weights and from those of another device. Test tasks judge;
choices are made with `--split val`, which prints the summary and writes no document.
Each result is a line of `runs/sampling/results.jsonl`, so that a run that was killed goes on, and a part can be run
alone: the figures are of all lines with as many programs a task, and the document names what is missing.
"""

from __future__ import annotations

import json
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import numpy as np
from benchmarking import ROOT, finish
from build_zoo import open_corpus
from sampling_figures import ALL, budgets, by_cell, means, summary, table
from sampling_results import (
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
from sampling_rounds import Learner, from_pretrained, from_scratch, run_rounds
from sampling_scale import time_samplers
from tuning_runs import read_json, write_json

POOL = 1_000_000
TEST_PER_TASK = 400


class Material:
    """The programs of one corpus, read when they are needed."""

    def __init__(self, corpus: str, per_task: int, split: str) -> None:
        self.corpus, self.per_task, self.split = corpus, per_task, split

    @cached_property
    def data(self) -> Any:
        """Training programs of the corpus and of its source, and test programs; see `training.gather`."""
        from tchub.zoo.training.gather import gather
        from tchub.zoo.training.read import Share

        share = Share(per_task=self.per_task)
        return gather(open_corpus(self.corpus), [open_corpus(SOURCES[self.corpus])], "nest", share)

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """Operator type of each training task."""
        tasks = open_corpus(self.corpus).tasks
        return tuple(tasks[task].op for task in self.data.own.task_ids)

    @cached_property
    def judges(self) -> Any:
        """Programs that judge, at most `TEST_PER_TASK` of a task, drawn once for all."""
        data = getattr(self.data, self.split)
        rng = np.random.default_rng(0)
        kept = [rng.permutation(members)[:TEST_PER_TASK] for members in data.members]
        return data.take(np.sort(np.concatenate(kept)))

    @cached_property
    def start(self) -> Any:
        """TileNet of the source's programs."""
        return from_scratch(self.data.sources, 0)

    @cached_property
    def cost(self) -> tuple[float, float]:
        """Seconds to build a program, and how often its latency a measurement takes, by the corpus's own times."""
        from pyarrow import parquet

        programs = parquet.read_table(
            open_corpus(self.corpus).path / "programs.parquet", columns=["latency", "cost_seconds"]
        )
        latency, cost = (np.array(programs[name].to_pylist(), dtype=float) for name in ("latency", "cost_seconds"))
        known = np.isfinite(latency) & np.isfinite(cost)
        runs, build = np.polyfit(latency[known], cost[known], 1)
        # Logs with a fixed time a program have no slope to speak of, or a negative one.
        return (float(build), float(runs)) if min(runs, build) > 0 else (float(np.median(cost[known])), 0.0)

    def learner(self, block: str) -> Learner:
        """What makes a model of picks."""
        return from_scratch if block == "scratch" else from_pretrained(self.start)


def run(key: Key, material: Material, known: dict[tuple[int, int], Any]) -> dict[str, Any]:
    """One result; `known` has the models of the random starts of this corpus and block."""
    from tchub.zoo.adapt.sampling import create_sampler
    from tchub.zoo.adapt.view import MeasuringCost
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


def fill(journal: Journal, wanted: list[Key], split: str, minutes: float) -> None:
    """Run what the journal lacks, until the time is over."""
    began = time.time()
    done = {key_of(row) for row in journal.rows()}
    missing = [key for key in wanted if key not in done]
    materials: dict[str, Material] = {}
    starts: dict[tuple[str, str, int, float], dict[tuple[int, int], Any]] = {}
    for number, key in enumerate(missing):
        if time.time() - began > 60 * minutes > 0:
            click.echo(f"{len(missing) - number} results are left for another run", err=True)
            return
        material = materials.setdefault(key.corpus, Material(key.corpus, key.per_task, split))
        group = (key.corpus, key.block, key.seed, key.share)
        if group not in starts:
            starts.clear()
        journal.add(run(key, material, starts.setdefault(group, {})))
        left = (time.time() - began) / (number + 1) * (len(missing) - number - 1)
        click.echo(f"{number + 1}/{len(missing)} {key}; {left / 60:.0f} min left", err=True)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(SOURCES)), help="Only these corpora.")
@click.option("--seeds", default="0,1,2,3,4", show_default=True, help="Seeds, comma-separated.")
@click.option("--shares", default=",".join(map(str, SHARES)), show_default=True, help="Of the training programs.")
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
    began, journal = time.time(), Journal(work if split == "test" else work / split)
    used = tuple(int(seed) for seed in seeds.split(","))
    chosen = tuple(float(share) for share in shares.split(","))
    fill(journal, list(keys(only or tuple(SOURCES), used, chosen, per_task)), split, minutes)
    rows = kept_rows(journal, per_task)
    if split == "val":
        click.echo(json.dumps(summary(rows), indent=2))
        return
    timed = pool_rows(work, pool)
    found = {"programs_per_task": per_task, **details(rows, per_task), "pool": timed}
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
