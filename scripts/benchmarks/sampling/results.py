"""The single results of the benchmark of samplers: what is asked, and which of it there is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from scripts.benchmarks.sampling.figures import ALL

# Each corpus, and the device of which the second block's weights are.
SOURCES = {
    "k80": "v100",
    "epyc-turin": "ryzen-3700x-autotvm",
    "mi50": "v100",
    "cortex-a72-autotvm": "ryzen-3700x-autotvm",
    "rtx2080ti": "v100",
}
SAMPLERS = ("random", "stratified", "alt", "balto", "fasor", "rdu", "rdu+", "strata")
SHARES = (0.1, 0.05, 0.2, 0.02)
# Labels of each task, where the tasks that are measured judge.
LABELS = (8, 4, 16)
PER_TASK = 120
WANTED_SEEDS = 5

K = TypeVar("K", "Key", "InTaskKey")


@dataclass(frozen=True)
class Key:
    """One result: what a model learns from a share of a corpus, judged on other tasks."""

    corpus: str
    block: str
    sampler: str
    share: float
    seed: int
    per_task: int = PER_TASK

    @property
    def group(self) -> tuple[Any, ...]:
        """Results of one group share the models of their random starts."""
        return self.corpus, self.block, self.seed, self.share


@dataclass(frozen=True)
class InTaskKey:
    """One result: what a model learns from a few programs of each judging task."""

    corpus: str
    sampler: str
    labels: int
    seed: int
    per_task: int = PER_TASK

    @property
    def group(self) -> tuple[Any, ...]:
        """Results of one group share the models of their first batches."""
        return self.corpus, self.labels, self.seed


def keys(corpora: Iterable[str], seeds: Iterable[int], shares: Iterable[float], per_task: int) -> Iterator[Key]:
    """Everything to be run: a tenth of every corpus first, then the other shares, seed by seed."""
    corpora = tuple(corpora)
    for share, seed, corpus, block in product((*shares, 1.0), seeds, corpora, ("scratch", "pretrained")):
        for sampler in SAMPLERS if share < 1 else (ALL,):
            yield Key(corpus, block, sampler, share, seed, per_task)


def in_task_keys(
    corpora: Iterable[str], seeds: Iterable[int], labels: Iterable[int], per_task: int
) -> Iterator[InTaskKey]:
    """Everything to be run, seed by seed, so that a run that is cut has whole tables of fewer seeds."""
    for seed, corpus, count, sampler in product(seeds, corpora, labels, SAMPLERS):
        yield InTaskKey(corpus, sampler, count, seed, per_task)


def by_key(rows: Iterable[Mapping[str, Any]], kind: type[K], per_task: int) -> dict[K, Mapping[str, Any]]:
    """The results with so many programs of a task; of one that was made twice the last."""
    every = {kind(**{name: row[name] for name in kind.__annotations__}): row for row in rows}
    return {key: row for key, row in every.items() if key.per_task == per_task}
