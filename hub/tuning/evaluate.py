"""A checkpoint's scores on a corpus, beside what random choice, stock XGBoost and little data would give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...zoo.errors import TchubError
from ...zoo.training import TrainConfig, evaluate_model, evaluate_random, evaluate_scores
from ...zoo.training.baselines import PackSumXGBoost, XGBoostConfig
from ...zoo.training.fit import METRICS_FORMAT, corpus_device, fit, load_parts

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus
    from ...zoo.models import Checkpoint
    from ...zoo.training import RankingDataset

FEW_DATA = 0.1
# Three programs a task are few enough that one training says little: the scores are the mean of these many.
FEW_RUNS = 3
_TELL_EVERY = 100
BASELINES = ("random", "xgboost", "ten_percent")


class EmptySplitError(TchubError):
    """The corpus has no task with enough valid programs in this split; fields: corpus, split."""


def evaluate(
    checkpoint: Checkpoint,
    corpus: Corpus,
    split: str = "test",
    *,
    baselines: Iterable[str] = (),
    seed: int = 0,
    threads: int = 1,
    cache: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Scores in the form of a checkpoint's `metrics.json`.

    Args:
        checkpoint: what is judged.
        corpus: measured programs.
        split: "train", "val" or "test".
        baselines: of `BASELINES`: a random order in expectation; MetaSchedule's XGBoost on PerStoreFeature,
            trained on the same training tasks; the checkpoint's own recipe on 10% of the training programs,
            picked at random, mean of three seeds.
        seed: of the 10% and of the training on them.
        threads: for XGBoost.
        cache: folder for statement features.
        note: told what is being done.

    Returns:
        format, corpus, split, tasks, programs, and results: for "model" and each baseline top1, top5,
        mean_top1, mean_top5, pairwise.

    Raises:
        EmptySplitError: the corpus has nothing in this split.
        TchubError: a subclass for each other way this can fail.
    """
    own = checkpoint.device.name == corpus.meta["device"]
    device = checkpoint.device if own else corpus_device(corpus)
    data = load_parts(corpus, checkpoint.config.feature_schema, device, (split,)).get(split)
    if data is None:
        raise _empty(corpus, split, "choose another --split, or collect tasks of the held-out networks")
    results = {"model": evaluate_model(checkpoint.model, data)}
    for name in baselines:
        note(f"baseline: {name}")
        if name == "random":
            results[name] = evaluate_random(data.latency, data.group, data.task_weights)
        elif name == "xgboost":
            results[name] = _evaluate_xgboost(corpus, data, split, seed, threads, cache, note)
        else:
            results[name] = _evaluate_ten_percent(checkpoint, corpus, data, seed)
    return {
        "format": METRICS_FORMAT,
        "checkpoint": f"{checkpoint.config.name}@{checkpoint.config.version}",
        "corpus": corpus.path.resolve().name,
        "split": split,
        "device": corpus.meta.get("device"),
        "seed": seed,
        "tasks": len(data.task_ids),
        "programs": len(data),
        "results": results,
    }


def _empty(corpus: Corpus, split: str, remedy: str) -> EmptySplitError:
    return EmptySplitError(
        f"{corpus.path} has no task with enough valid programs in its {split} split",
        remedy=remedy,
        corpus=str(corpus.path),
        split=split,
    )


def _evaluate_ten_percent(checkpoint: Checkpoint, corpus: Corpus, data: RankingDataset, seed: int) -> dict[str, float]:
    recipe = checkpoint.config.training.get("recipe")
    config = TrainConfig.from_dict(recipe) if recipe else _default_recipe(checkpoint)
    runs = [fit(corpus, config, seed=seed + i, programs_fraction=FEW_DATA) for i in range(FEW_RUNS)]
    scores = [evaluate_model(run.checkpoint.model, data) for run in runs]
    return {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}


def _default_recipe(checkpoint: Checkpoint) -> TrainConfig:
    """The shipped recipe of the architecture, for a checkpoint that does not say how it was trained."""
    return replace(TrainConfig.find(checkpoint.config.arch), model=checkpoint.config.model)


def _evaluate_xgboost(
    corpus: Corpus,
    data: RankingDataset,
    split: str,
    seed: int,
    threads: int,
    cache: Path | None,
    note: Callable[[str], None],
) -> dict[str, float]:
    train_x, train_latency, train_group = _statements(corpus, "train", cache, note)
    if not train_x:
        raise _empty(corpus, "train", "leave out --baselines, or collect tasks of more networks")
    best = np.full(int(train_group.max()) + 1, np.inf)
    np.minimum.at(best, train_group, train_latency)
    labels = best[train_group] / train_latency
    config = XGBoostConfig(seed=XGBoostConfig.seed + seed, threads=threads)
    note(f"training XGBoost on {len(train_x)} programs, {sum(map(len, train_x))} statements")

    def tell(number: int, error: float) -> None:
        if number % _TELL_EVERY == 0:
            note(f"XGBoost round {number}, training error {error:.5f}")

    model = PackSumXGBoost(config).fit(train_x, labels, tell)
    test_x, latency, group = _statements(corpus, split, cache, note)
    return evaluate_scores(model.predict(test_x), latency, group, data.task_weights)


def _statements(
    corpus: Corpus, part: str, cache: Path | None, note: Callable[[str], None]
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """PerStoreFeature, latency and task index of the programs that `to_dataset` takes, in its order."""
    from ...zoo.corpus import split_tasks, usable_programs
    from .perstore import perstore_features

    usable = usable_programs(corpus, split_tasks(corpus).part(part)).programs
    features: list[np.ndarray] = []
    for number, (task_id, programs) in enumerate(usable.items()):
        note(f"statement features: {part} task {number + 1} of {len(usable)}, {len(programs)} programs")
        task = corpus.tasks[task_id]
        features += perstore_features(task.workload, [p.trace for p in programs], programs[0].target, cache)
    flat = [p for programs in usable.values() for p in programs]
    sizes = [len(programs) for programs in usable.values()]
    return features, np.array([p.latency for p in flat]), np.repeat(np.arange(len(sizes)), sizes)
