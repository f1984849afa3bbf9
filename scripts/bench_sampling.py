"""Samplers side by side: what a model learns from 2, 5, 10 and 20% of a corpus, chosen by each of them.

    python scripts/bench_sampling.py --minutes 70 --json

Every sampler starts from the same random quarter of its budget and picks the rest in three rounds, the model
being updated after each; TileNet learns, from random weights and from those of another device. Test tasks judge.
Each result is a line of `runs/sampling/results.jsonl`, so that a run that was killed goes on; the figures are of
all lines that are there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import numpy as np
from benchmarking import ROOT, finish
from build_zoo import open_corpus
from sampling_figures import by_cell, summary, table
from sampling_rounds import Learner, from_pretrained, from_scratch, run_rounds
from sampling_scale import time_samplers

# Each corpus, and the device of which the second block's weights are.
SOURCES = {
    "k80": "v100",
    "epyc-turin": "ryzen-3700x-autotvm",
    "mi50": "v100",
    "cortex-a72-autotvm": "ryzen-3700x-autotvm",
    "rtx2080ti": "v100",
}
SAMPLERS = ("random", "stratified", "alt", "balto", "fasor", "rdu", "rdu+")
SHARES = (0.1, 0.05, 0.2, 0.02)
ALL = "all"
PER_TASK = 120
# Everything at once takes longest and depends on the seed least.
SEEDS_OF_ALL = 3
TEST_PER_TASK = 400


@dataclass(frozen=True)
class Key:
    """One result."""

    corpus: str
    block: str
    sampler: str
    share: float
    seed: int


def _key(row: dict[str, Any]) -> Key:
    return Key(**{name: row[name] for name in Key.__annotations__})


class Material:
    """The programs of one corpus, read when they are needed."""

    def __init__(self, corpus: str, per_task: int) -> None:
        self.corpus, self.per_task = corpus, per_task

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
    def test(self) -> Any:
        """Test programs, at most `TEST_PER_TASK` of a task, drawn once for all."""
        rng = np.random.default_rng(0)
        kept = [rng.permutation(members)[:TEST_PER_TASK] for members in self.data.test.members]
        return self.data.test.take(np.sort(np.concatenate(kept)))

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


def keys(corpora: tuple[str, ...], seeds: tuple[int, ...], shares: tuple[float, ...]) -> Iterator[Key]:
    """Everything to be run: a tenth of every corpus first, then the other shares, seed by seed."""
    for share in (*shares, 1.0):
        for seed in seeds if share < 1 else seeds[:SEEDS_OF_ALL]:
            for corpus in corpora:
                for block in ("scratch", "pretrained"):
                    for sampler in SAMPLERS if share < 1 else (ALL,):
                        yield Key(corpus, block, sampler, share, seed)


def run(key: Key, material: Material, known: dict[tuple[int, int], Any]) -> dict[str, Any]:
    """One result; `known` has the models of the random starts of this corpus and block."""
    from tchub.zoo.adapt.sampling import create_sampler
    from tchub.zoo.adapt.view import MeasuringCost
    from tchub.zoo.training import evaluate_scores

    data, test, (build, runs) = material.data.own, material.test, material.cost
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


class Journal:
    """One line a result."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "results.jsonl"
        folder.mkdir(parents=True, exist_ok=True)

    def rows(self) -> list[dict[str, Any]]:
        """All results, a last line that was cut short left out."""
        rows = []
        for line in self.file.read_text().splitlines() if self.file.is_file() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:
                click.echo(f"{self.file}: a broken line is left out", err=True)
        return rows

    def add(self, row: dict[str, Any]) -> None:
        # A line that was cut short must not spoil this one.
        broken = self.file.is_file() and not self.file.read_bytes().endswith(b"\n")
        with self.file.open("a") as stream:
            stream.write("\n" * broken + json.dumps(row) + "\n")


def fill(journal: Journal, wanted: list[Key], per_task: int, minutes: float) -> None:
    """Run what the journal lacks, until the time is over."""
    began = time.time()
    done = {_key(row) for row in journal.rows()}
    missing = [key for key in wanted if key not in done]
    materials: dict[str, Material] = {}
    starts: dict[tuple[str, str, int, float], dict[tuple[int, int], Any]] = {}
    for number, key in enumerate(missing):
        if time.time() - began > 60 * minutes > 0:
            click.echo(f"{len(missing) - number} results are left for another run", err=True)
            return
        material = materials.setdefault(key.corpus, Material(key.corpus, per_task))
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
@click.option("--pool", default=1_000_000, show_default=True, help="Programs of the pool that is timed; 0 times none.")
@click.option("--work", default=ROOT / "runs" / "sampling", type=click.Path(path_type=Path), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the whole document.")
def main(
    only: tuple[str, ...],
    seeds: str,
    shares: str,
    minutes: float,
    per_task: int,
    pool: int,
    work: Path,
    as_json: bool,
) -> None:
    """Compare the samplers and write docs/benchmarks/sampling.json."""
    import torch

    torch.set_num_threads(1)
    began, journal = time.time(), Journal(work)
    used = tuple(int(seed) for seed in seeds.split(","))
    wanted = list(keys(only or tuple(SOURCES), used, tuple(float(share) for share in shares.split(","))))
    fill(journal, wanted, per_task, minutes)
    rows = [row for row in journal.rows() if _key(row) in set(wanted)]
    means = table(rows)
    details = {
        "results": len(rows),
        "of": len(wanted),
        "sources": SOURCES,
        "programs_per_task": per_task,
        "cells": by_cell(means),
        "table": means,
        "pool": time_samplers(pool, (pool // 1000, pool // 10), SAMPLERS) if pool else [],
    }
    finish("sampling", summary(means), details, list(used), as_json, began)


if __name__ == "__main__":
    main()
