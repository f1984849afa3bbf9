"""Samplers where the tasks that are measured are the ones to be ranked, as `tchub adapt --workload NETWORK` uses them.

A pretrained TileNet learns 4, 8 or 16 programs of each judging task, picked from 64 of them, and ranks the others of
the task, the measured ones being its context. The first batch is that of `tchub adapt`, two programs of each task at
least; the rest comes in three rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scripts.benchmarks.sampling.figures import SCORES, Row, common_means
from scripts.benchmarks.sampling.results import PER_TASK, SAMPLERS, SOURCES
from scripts.benchmarks.sampling.rounds import Material, Opening, run_rounds
from scripts.zoo.build import open_corpus

LABELS = (8, 4, 16)
# Of each judging task: programs to pick from, at most half of the task, and all that are used.
POOL, MOST = 64, 300


@dataclass(frozen=True)
class InTaskKey:
    """One result; a line that does not tell `per_task` has the default one."""

    corpus: str
    sampler: str
    labels: int
    seed: int
    per_task: int = PER_TASK

    @property
    def group(self) -> tuple[Any, ...]:
        """Results of one group share the models of their first batches."""
        return self.corpus, self.labels, self.seed


def in_task_keys(
    corpora: Sequence[str], seeds: Sequence[int], labels: Sequence[int] = LABELS, per_task: int = PER_TASK
) -> Iterator[InTaskKey]:
    """Everything to be run, seed by seed, so that a run that is cut has whole tables of fewer seeds."""
    for seed in seeds:
        for corpus in corpora:
            for count in labels:
                for sampler in SAMPLERS:
                    yield InTaskKey(corpus, sampler, count, seed, per_task)


def run_in_task(key: InTaskKey, material: Material, known: dict[Any, Any]) -> dict[str, Any]:
    """One result; `known` has the models of first batches, by what picked them."""
    from tchub.hub.adaptation.session import first_sampler
    from tchub.zoo.adapt.cross_validation import informed_scores
    from tchub.zoo.adapt.sampling import MeasuringCost, create_sampler
    from tchub.zoo.training import evaluate_scores

    whole = getattr(material.data, material.split)
    pool, test = (whole.take(places) for places in halves(whole.members, key.seed))
    tasks = open_corpus(key.corpus).tasks
    sampler, cost = create_sampler(key.sampler), MeasuringCost(*material.cost)
    first = first_sampler(sampler)
    picked = run_rounds(
        pool,
        tuple(tasks[task].op for task in pool.task_ids),
        sampler,
        key.labels * len(pool.task_ids),
        key.seed,
        material.learner("pretrained"),
        cost,
        known.setdefault(first.name, {}),
        Opening(first, material.start, 2 * len(pool.task_ids), to_rank=True),
    )
    learnt = pool.take(np.sort(picked.indices))
    scores = informed_scores(picked.model, test.features, test.group, learnt)
    found = evaluate_scores(scores, test.latency, test.group, test.task_weights)
    return vars(key) | {
        "programs": len(learnt),
        "scores": {name: round(found[name], 5) for name in SCORES},
        "measuring_seconds": round(float(cost.seconds(learnt.latency).sum()), 1),
    }


def halves(members: Sequence[np.ndarray], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Places, ascending, of the programs to pick from and of those to be ranked, drawn from each task."""
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(own)[:MOST] for own in members]
    cuts = [min(POOL, len(own) // 2) for own in drawn]
    parts = [own[:cut] for own, cut in zip(drawn, cuts, strict=True)]
    rest = [own[cut:] for own, cut in zip(drawn, cuts, strict=True)]
    return np.sort(np.concatenate(parts)), np.sort(np.concatenate(rest))


def in_task_means(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row for each number of labels and sampler: means over the corpora and seeds that all samplers have."""
    return common_means(rows, ("labels",))


def in_task_not_done(done: set[InTaskKey], per_task: int, seeds: int) -> list[str]:
    """What is missing of the plan, in few words."""
    planned = list(in_task_keys(tuple(SOURCES), range(seeds), per_task=per_task))
    missing = [key for key in planned if key not in done]
    return [f"{len(missing)} of {len(planned)} results of the tasks that are measured"] if missing else []
