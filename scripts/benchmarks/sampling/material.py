"""What the benchmark of samplers works on: a corpus, a model of another device, and what measuring costs."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from scripts.benchmarks.sampling.results import SOURCES
from scripts.benchmarks.sampling.rounds import Learner, from_pretrained, from_scratch
from scripts.zoo.build import open_corpus

TEST_PER_TASK = 400


class Material:
    """The programs of one corpus, read when they are needed."""

    def __init__(self, corpus: str, per_task: int, split: str) -> None:
        self.corpus, self.per_task, self.split = corpus, per_task, split

    @cached_property
    def data(self) -> Any:
        """Training programs of the corpus and of its source, and test programs; see `training.gather`."""
        from tchub.zoo.training.programs import Share
        from tchub.zoo.training.training_data import load_training_data

        share = Share(per_task=self.per_task)
        return load_training_data(open_corpus(self.corpus), [open_corpus(SOURCES[self.corpus])], "nest", share)

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
