"""A checkpoint's scores on a corpus, beside what random choice, XGBoost, little data and a few labels would give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...zoo.errors import TchubError
from ...zoo.models import get_architecture
from ...zoo.training import TrainConfig, evaluate_model, evaluate_random, evaluate_scores, predict
from ...zoo.training.evaluation import draw_labels, evaluate_unknown, few_shot_scores
from ...zoo.training.fit import METRICS_FORMAT, fit, load_parts
from ...zoo.training.programs import StatementStore, corpus_device
from ..search.device_kind import require_kind
from .xgboost_baseline import evaluate_xgboost

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus
    from ...zoo.models import Checkpoint
    from ...zoo.training import RankingDataset

FEW_DATA = 0.1
# Three programs a task are few enough that one training says little: the scores are the mean of these many.
FEW_RUNS = 3
BASELINES = ("random", "xgboost", "ten_percent")


class EmptySplitError(TchubError):
    """The corpus has no task with enough valid programs in this split; fields: corpus, split."""


def evaluate(
    checkpoint: Checkpoint,
    corpus: Corpus,
    split: str = "test",
    *,
    baselines: Iterable[str] = (),
    labels: int = 0,
    curves: bool = False,
    seed: int = 0,
    threads: int = 1,
    cache: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Scores in the form of a checkpoint's `metrics.json`.

    Args:
        checkpoint: what is judged.
        corpus: measured programs, of any framework.
        split: "train", "val" or "test".
        baselines: of `BASELINES`: a random order in expectation; XGBoost trained on the same training tasks (see
            `evaluate_xgboost`); the checkpoint's own recipe on 10% of the training programs, picked at random,
            mean of three seeds.
        labels: also rank with so many programs of each task known, at most half of them, which do not count.
        curves: also what a card draws: top-k, calibration, failures (see `measure_curves`).
        seed: of the 10%, of the training on them, and of the labels.
        threads: for XGBoost, and processes that replay programs.
        cache: folder for statement features, which statement models and XGBoost read.
        note: told what is being done.

    Returns:
        format, corpus, split, tasks, programs, and results: for "model" and each baseline top1, top5,
        mean_top1, mean_top5, pairwise; with labels also few_shot: their number -> the scores; curves where asked.

    Raises:
        DeviceKindError: the checkpoint is for the other kind of device.
        EmptySplitError: the corpus has nothing in this split.
        TrainingError: labels, and the model takes none as context.
        TchubError: a subclass for each other way this can fail.
    """
    own = checkpoint.device.name == corpus.meta["device"]
    device = checkpoint.device if own else corpus_device(corpus)
    require_kind(checkpoint, device)
    store = StatementStore(cache, workers=threads)
    data = load_parts(corpus, checkpoint.config.feature_schema, device, (split,), store).get(split)
    if data is None:
        raise EmptySplitError(
            f"{corpus.path} has no task with enough valid programs in its {split} split",
            remedy="choose another --split, or collect tasks of the held-out networks",
            corpus=str(corpus.path),
            split=split,
        )
    scores = predict(checkpoint.model, data.features)
    results: dict[str, Any] = {"model": evaluate_scores(scores, data.latency, data.group, data.task_weights)}
    few_shot = {"few_shot": {str(labels): _evaluate_few_shot(checkpoint, data, labels, seed)}} if labels else {}
    drawn = {"curves": _curves(corpus, data, scores)} if curves else {}
    for name in baselines:
        note(f"baseline: {name}")
        if name == "random":
            results[name] = evaluate_random(data.latency, data.group, data.task_weights)
        elif name == "xgboost":
            results[name] = evaluate_xgboost(corpus, split, seed=seed, threads=threads, cache=cache, note=note)
        else:
            results[name] = _evaluate_ten_percent(checkpoint, corpus, data, seed, store)
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
        **few_shot,
        **drawn,
    }


def _evaluate_few_shot(checkpoint: Checkpoint, data: RankingDataset, labels: int, seed: int) -> dict[str, float]:
    known = draw_labels(data, labels, seed)
    return evaluate_unknown(data, known, few_shot_scores(checkpoint.model, data, labels, seed))


def _curves(corpus: Corpus, data: RankingDataset, scores: np.ndarray) -> dict[str, Any]:
    from ...zoo.corpus import computations
    from ...zoo.training.evaluation import RankedPrograms, measure_curves

    return measure_curves([RankedPrograms(corpus.path.resolve().name, corpus.tasks, data, scores, computations(corpus))])


def _evaluate_ten_percent(
    checkpoint: Checkpoint, corpus: Corpus, data: RankingDataset, seed: int, store: StatementStore
) -> dict[str, float]:
    recipe = checkpoint.config.training.get("recipe")
    config = TrainConfig.from_dict(recipe) if recipe else _default_recipe(checkpoint)
    runs = [fit(corpus, config, seed=seed + i, programs_fraction=FEW_DATA, store=store) for i in range(FEW_RUNS)]
    scores = [evaluate_model(run.checkpoint.model, data) for run in runs]
    return {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}


def _default_recipe(checkpoint: Checkpoint) -> TrainConfig:
    """The shipped recipe of the architecture, for a checkpoint that does not say how it was trained.

    For a knowledge base or a committee that of the networks it is made of: what it is beyond them, no recipe trains.
    """
    arch = get_architecture(checkpoint.config.arch).base or checkpoint.config.arch
    own = {f.name for f in fields(get_architecture(arch).config)}
    settings = {name: value for name, value in checkpoint.config.model.items() if name in own}
    return replace(TrainConfig.find(arch), model=settings)
