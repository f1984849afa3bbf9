"""Fasor's cost model beside others, and what a few programs of another device teach it (Fasor, tables 8 and 9).

    python -m scripts.zoo.build import --data DIR
    python -m scripts.benchmarks heads --json

`models`: the test tasks of `CORPUS` judge the checkpoints of the wheel that learnt its training tasks, and what learns
these here: TLP and its LSTM by their recipes, and XGBoost. `transfer`: `fasor-epyc` judged on the test tasks of other
devices' corpora that it has not learnt, as it is (`before`), after it was fine-tuned on `LABELS` programs of their
training tasks (`after`), and a network of random weights trained on the same programs (`scratch`). They are of the ten
tasks that are least alike (section 4.2), drawn by the seed; no validation task chooses anything.

R² of the latency is of -log(latency) within tasks, as of `tchub evaluate`. A ranking loss leaves the scale of scores
open: among the models all are multiplied by the one factor that fits the validation tasks best.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from tchub.zoo.adapt.method import recipe_for
from tchub.zoo.adapt.sampling import Pool, PoolPredictions, create_sampler
from tchub.zoo.models import Checkpoint, CostModel, XGBoostRanker, create
from tchub.zoo.training import RankingDataset, TrainConfig, evaluate_model, train
from tchub.zoo.training.evaluation import head_scores
from tchub.zoo.training.fit import fit, fit_trees
from tchub.zoo.training.metrics import r_squared
from tchub.zoo.training.programs import Share, corpus_device, read_programs, resolve_schema
from tchub.zoo.training.training_data import load_part, load_training_data

from scripts.benchmarks.common import Document, benchmark, kept, note, work_option
from scripts.zoo.measure_cards import judging_tasks, learnt_computations
from scripts.zoo.plan import open_corpus, statement_store
from scripts.zoo.publish import WHEEL

CORPUS, CHECKPOINT = "epyc-turin", "fasor-epyc"
PUBLISHED = (CHECKPOINT, "tcl-epyc", "tenset-mlp-epyc", "tilenet-epyc")
TRAINED = ("tlp", "lstm")
TARGETS = ("epyc-genoa-tuned", "ryzen-3700x-autotvm", "xeon-4210-autotvm")
# Programs that are measured; programs of a task of another device's corpus that are read at most, at random.
LABELS, PER_TASK = 160, 64
SEEDS = (0, 1, 2)
HEADS = ("latency", "memory", "core")


def scale_of(scores: np.ndarray, data: RankingDataset) -> float:
    """The factor by which scores are the best estimates of -log(latency), the mean of each task taken off both."""
    wanted, given = (
        values - np.array([values[members].mean() if len(members) else 0.0 for members in data.members])[data.group]
        for values in (-np.log(data.latency), scores)
    )
    spread = float(given @ given)
    return float(given @ wanted) / spread if spread else 0.0


def judge(model: CostModel | XGBoostRanker, val: RankingDataset, test: RankingDataset) -> dict[str, float]:
    """Top-1, pairwise accuracy and R² of the latency; of a model of three heads, R² of the other two."""
    scores = evaluate_model(model, test)
    scaled = scale_of(np.asarray(model.score(val.features)), val) * np.asarray(model.score(test.features))
    row = {"top1": scores["top1"], "pairwise": scores["pairwise"]}
    row |= {"latency": r_squared(scaled, -np.log(test.latency), test.group)}
    others = head_scores(model, test) if isinstance(model, CostModel) else {}
    return row | {name: others[name] for name in HEADS[1:] if name in others}


def judged_models(work: Path) -> Iterator[dict[str, Any]]:
    """Yield the scores of each model on the test tasks of the corpus."""
    corpus = open_corpus(CORPUS)

    def parts(schema: str) -> tuple[RankingDataset, RankingDataset]:
        full = resolve_schema(schema, corpus_device(corpus).kind)
        val, test = (load_part(corpus, part, full, store=statement_store()) for part in ("val", "test"))
        assert val is not None, f"{CORPUS} has no validation programs"
        assert test is not None, f"{CORPUS} has no test programs"
        return val, test

    def published(name: str) -> dict[str, Any]:
        checkpoint = Checkpoint.load(next((WHEEL / name).glob("*/config.json")).parent)
        training = checkpoint.config.training
        learnt = sum(one.get("programs") or 0 for one in (training["corpus"], *training.get("sources", ())))
        return {"learnt": learnt, **judge(checkpoint.model, *parts(checkpoint.config.feature_schema))}

    def trained(arch: str) -> dict[str, Any]:
        recipe = TrainConfig.find(arch)
        data = load_training_data(corpus, (), recipe.feature_schema)
        model = fit(data, recipe).checkpoint.model
        return {"learnt": len(data.train), **judge(model, *parts(recipe.feature_schema))}

    def trees() -> dict[str, Any]:
        data = load_training_data(corpus, (), "tcl")
        return {"learnt": len(data.train), **judge(fit_trees(XGBoostRanker(), data), *parts("tcl"))}

    rows: dict[str, Callable[[], dict[str, Any]]] = {name: partial(published, name) for name in PUBLISHED}
    rows |= {arch: partial(trained, arch) for arch in TRAINED} | {"XGBoost on primitives": trees}
    for name, make in rows.items():
        row = kept(work / "models" / f"{name.replace(' ', '-')}.json", make)
        note(f"{name}: pairwise {row['pairwise']:.4f}, R² {row['latency']:.3f}")
        yield {"model": name, **row}


@dataclass(frozen=True)
class Target:
    """A device that the checkpoint has not learnt: its programs to learn from, and those that judge."""

    own: RankingDataset
    test: RankingDataset
    operators: tuple[str, ...]

    def labels(self, seed: int) -> RankingDataset:
        """The programs that are measured."""
        pool, scores = Pool(self.own.group, self.operators), np.zeros(len(self.own))
        view = PoolPredictions(scores, [], np.zeros(0), lambda: scores[:, None], features=self.own.features)
        chosen = create_sampler("fasor").select(pool, [], LABELS, view, np.random.default_rng(seed))
        return self.own.take(np.sort(chosen.indices))


def read_target(name: str, schema: str) -> Target:
    """The training tasks of a corpus, and its test tasks that compute nothing that the checkpoint has learnt."""
    corpus = open_corpus(name)
    data = load_training_data(corpus, (), schema, Share(per_task=PER_TASK))
    unseen = judging_tasks(corpus, learnt_computations([open_corpus(CORPUS)]))
    test, _ = read_programs(corpus, unseen, data.schema, share=Share(per_task=PER_TASK))
    assert test is not None, f"{name} has no test programs that are new"
    return Target(data.train, test, tuple(corpus.tasks[task].op for task in data.train.task_ids))


def transfer_row(target: Target, seed: int) -> dict[str, dict[str, float]]:
    """Scores before the fine-tuning, after it, and of a network that learnt the labels alone."""
    base = Checkpoint.load(next((WHEEL / CHECKPOINT).glob("*/config.json")).parent).model
    labels = target.labels(seed)
    scratch = create(base.arch, seed=seed, **base.config.as_dict())
    train(scratch, labels, None, recipe_for(base.arch, labels), seed)
    tuned = fine_tune(base, labels, FineTuneConfig(seed=seed)).model
    return {
        name: {"pairwise": evaluate_model(model, target.test)["pairwise"], **head_scores(model, target.test)}
        for name, model in (("before", base), ("after", tuned), ("scratch", scratch.eval()))
    }


def transferred(work: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each target and stage, means over the seeds."""
    for name in TARGETS:
        target = read_target(name, "tlp")
        made = [partial(transfer_row, target, seed) for seed in SEEDS]
        runs = [kept(work / "transfer" / f"{name}-{seed}.json", make) for seed, make in zip(SEEDS, made, strict=True)]
        for stage, first in runs[0].items():
            scores = {key: mean(run[stage][key] for run in runs) for key in first}
            note(f"{name} {stage}: pairwise {scores['pairwise']:.4f}, R² {scores['latency']:.3f}")
            yield {"target": name, "tasks": len(target.test.task_ids), "stage": stage, **scores}


@benchmark("heads", work_option("heads"))
def main(work: Path) -> Document:
    """Judge Fasor's cost model and its transfer; writes docs/benchmarks/heads.json."""
    torch.set_num_threads(1)
    models, rows = list(judged_models(work)), list(transferred(work))
    own = next(row for row in models if row["model"] == CHECKPOINT)
    summary = {f"{name}_r2": own[name] for name in HEADS} | {"pairwise": own["pairwise"]}
    for stage in ("before", "after", "scratch"):
        for name in ("pairwise", "latency"):
            summary[f"{stage}_{name}"] = mean(row[name] for row in rows if row["stage"] == stage)
    details = {"corpus": CORPUS, "labels": LABELS, "models": models, "transfer": rows}
    return summary, details, SEEDS
