"""One run of a sampler: a random start and rounds, each picked with the model that learnt from what came before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pyarrow import parquet
from tchub.hub.adaptation.session import first_sampler
from tchub.zoo.adapt.errors import LabelError
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from tchub.zoo.adapt.sampling import MeasuringCost, Pool, PoolPredictions, RandomSampler, create_sampler
from tchub.zoo.models import create
from tchub.zoo.training import evaluate_scores
from tchub.zoo.training.config import TrainConfig
from tchub.zoo.training.evaluation import informed_scores
from tchub.zoo.training.loop import train
from tchub.zoo.training.programs import Share
from tchub.zoo.training.training_data import load_training_data

from scripts.benchmarks.sampling.figures import SCORES
from scripts.zoo.plan import open_corpus

# Each corpus, and the device of which the second block's weights are.
SOURCES = {
    "k80": "v100",
    "epyc-turin": "ryzen-3700x-autotvm",
    "mi50": "v100",
    "cortex-a72-autotvm": "ryzen-3700x-autotvm",
    "rtx2080ti": "v100",
}
# Training programs of a task at most; those that judge.
PER_TASK, TEST_PER_TASK = 120, 400
# Of each judging task in-task: programs to pick from, at most half of the task, and all that are used.
POOL, MOST = 64, 300

ROUNDS = 3
# A recipe counts passes over thousands of programs; a few hundred need as many steps, hence more passes.
STEPS = 100
MOST_PASSES = 50
# Samplers that pick alike whatever the model says: they are not held up by training one.
BLIND = ("random", "stratified", "fasor")

Learner = Callable[[Any, int], Any]


@dataclass(frozen=True)
class Opening:
    """How a run begins: what picks the start and the model that it may ask, programs of it at least.

    Attributes:
        to_rank: whether the tasks are those that will be ranked, see `Pool`.
    """

    sampler: Any
    base: Any = None
    least: int = 0
    to_rank: bool = False


def run_rounds(
    data: Any,
    ops: Sequence[str],
    sampler: Any,
    budget: int,
    seed: int,
    learn: Learner,
    cost: Any = None,
    known: dict[tuple[int, int], Any] | None = None,
    opening: Opening | None = None,
) -> tuple[Any, np.ndarray]:
    """Spend a budget of programs on a sampler's picks; return the model that learnt them all, and their indices.

    Args:
        data: the training programs, all measured; labels are looked up as they are picked.
        ops: operator type of each task.
        budget: programs in all; a quarter of it is the start, the same for all samplers of a seed and an opening.
        learn: makes a model of the programs given, with a seed.
        cost: `zoo.adapt.sampling.MeasuringCost` of the corpus.
        known: models of the starts, by (budget, seed), which are every sampler's that has this opening.
        opening: how to begin; at random unless given.
    """
    opening = opening or Opening(RandomSampler())
    pool = Pool(data.group, tuple(ops), to_rank=opening.to_rank)
    known = {} if known is None else known
    picked, model = np.empty(0, np.int64), opening.base
    for number in range(ROUNDS + 1):
        count = -(-(budget - len(picked)) // (ROUNDS + 1 - number))
        if not number:
            count = min(budget, max(count, opening.least))
        if count < 1:
            continue
        chooser, latency = sampler if number else opening.sampler, data.latency[picked]
        if model is None:
            view = PoolPredictions(np.zeros(len(data)), picked, latency, _nothing, features=data.features)
        else:  # costs what the sampler asks of it; features alone are free
            view = PoolPredictions.of(model, data.features, picked, latency, task=data.group, cost=cost)
        chosen = chooser.select(pool, picked, count, view, np.random.default_rng([seed, number]), round=number)
        picked = np.concatenate([picked, chosen.indices])
        if number < ROUNDS and sampler.name in BLIND:
            continue
        model = known.get((budget, seed)) if number == 0 else None
        if model is None:
            model = learn(data.take(np.sort(picked)), seed)
        if number == 0:
            known[budget, seed] = model
    return model, picked


def _nothing() -> np.ndarray:
    raise AssertionError("a sampler that asks no model asked for embeddings")


def from_scratch(data: Any, seed: int) -> Any:
    """TileNet from random weights, by the recipe of the zoo's own, no program of a validation task asked."""
    recipe = TrainConfig.find("tilenet").as_dict()
    batches = -(-len(np.unique(data.group)) // recipe["groups_per_batch"])
    passes = max(recipe["epochs"], min(MOST_PASSES, STEPS // batches))
    config = TrainConfig.from_dict(recipe | {"epochs": passes, "select": "last", "average": 0.95})
    model = create("tilenet", seed=seed, width=data.features.shape[2], hardware=False)
    model.prepare(torch.from_numpy(data.features))
    train(model, data, None, config, seed)
    return model


def from_pretrained(start: Any) -> Learner:
    """A learner that fine-tunes a pretrained model as `tchub adapt` does.

    Where no task has two programs to put in order, the model stays as it was.
    """

    def learn(data: Any, seed: int) -> Any:
        try:
            return fine_tune(start, data, FineTuneConfig(seed=seed)).model
        except LabelError:
            return start

    return learn


class Material:
    """The programs of one corpus, read when they are needed; `split` judges."""

    def __init__(self, corpus: str, split: str) -> None:
        self.corpus, self.split = corpus, split

    @cached_property
    def data(self) -> Any:
        """Training programs of the corpus and of its source, and test programs; see `training.training_data`."""
        share = Share(per_task=PER_TASK)
        return load_training_data(open_corpus(self.corpus), [open_corpus(SOURCES[self.corpus])], "nest", share)

    def ops(self, programs: Any) -> tuple[str, ...]:
        """Operator type of each task of some programs."""
        tasks = open_corpus(self.corpus).tasks
        return tuple(tasks[task].op for task in programs.task_ids)

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


def run_in_task(key: Any, material: Material, known: dict[Any, Any]) -> dict[str, Any]:
    """One result where the tasks that are measured judge, as `tchub adapt --workload NETWORK` uses a sampler.

    A pretrained TileNet learns some programs of each judging task, picked from 64 of them, and ranks the others, the
    measured ones being its context. The first batch is that of `tchub adapt`, two programs of each task at least; the
    rest comes in three rounds. `known` has the models of first batches, by what picked them.
    """
    whole = getattr(material.data, material.split)
    pool, test = (whole.take(half) for half in halves(whole.members, key.seed))
    sampler, cost = create_sampler(key.sampler), MeasuringCost(*material.cost)
    first = first_sampler(sampler)
    model, picked = run_rounds(
        pool, material.ops(pool), sampler, key.labels * len(pool.task_ids), key.seed, material.learner("pretrained"),
        cost, known.setdefault(first.name, {}), Opening(first, material.start, 2 * len(pool.task_ids), to_rank=True),
    )  # fmt: skip
    learnt = pool.take(np.sort(picked))
    scores = informed_scores(model, test.features, test.group, learnt)
    metrics = evaluate_scores(scores, test.latency, test.group, test.task_weights)
    return {
        "programs": len(learnt),
        "scores": {name: round(metrics[name], 5) for name in SCORES},
        "measuring_seconds": round(float(cost.seconds(learnt.latency).sum()), 1),
    }


def halves(members: Sequence[np.ndarray], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices, ascending, of the programs to pick from and of those to be ranked, drawn from each task."""
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(own)[:MOST] for own in members]
    cuts = [min(POOL, len(own) // 2) for own in drawn]
    parts = [own[:cut] for own, cut in zip(drawn, cuts, strict=True)]
    rest = [own[cut:] for own, cut in zip(drawn, cuts, strict=True)]
    return np.sort(np.concatenate(parts)), np.sort(np.concatenate(rest))
