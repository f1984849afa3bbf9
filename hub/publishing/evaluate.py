"""Scores of a checkpoint on a corpus, beside random choice, XGBoost, a tenth of the data, and a few labels."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...zoo.corpus import CorpusError, computations, metric_weight, split_tasks, usable_programs
from ...zoo.features import get_schema
from ...zoo.models import XGBoostRanker, get_architecture
from ...zoo.training import TrainConfig, evaluate_model, evaluate_random, evaluate_scores, predict
from ...zoo.training.baselines import PackSumXGBoost, evaluate_trees, fit_trees
from ...zoo.training.evaluation import RankedPrograms, draw_labels, evaluate_unknown, few_shot_scores, measure_curves
from ...zoo.training.fit import METRICS_FORMAT, fit
from ...zoo.training.programs import Share, StatementStore, corpus_device
from ...zoo.training.training_data import load_part, load_training_data
from ..search.candidate_features import require_kind

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus
    from ...zoo.models import Checkpoint
    from ...zoo.training import RankingDataset

FEW_DATA = 0.1
# Three programs a task are few enough that one training says little: the scores are the mean of these many.
FEW_RUNS = 3
BASELINES = ("random", "xgboost", "ten_percent")
STATEMENTS, PRIMITIVES = "XGBoost on PerStoreFeature", "XGBoost on primitives"
# Statements are read where at least this share of the programs to be ranked can be replayed.
REPLAYED = 0.9
_NOTE_EVERY = 100


@dataclass(frozen=True)
class EvaluationConfig:
    """Settings of an evaluation.

    Attributes:
        split: "train", "val" or "test".
        baselines: of `BASELINES`: a random order in expectation; XGBoost trained on the same training
            tasks; the checkpoint's own recipe on 10% of the training programs, picked at random, mean of three seeds.
        labels: also rank with so many programs of each task known, at most half of them, which do not count.
        curves: also the curves of a card: top-k, calibration, failures (see `measure_curves`).
        seed: of the 10%, of the training on them, and of the labels.
        threads: for XGBoost, and processes that replay programs.
        cache: folder for statement features, which statement models and XGBoost read.
    """

    split: str = "test"
    baselines: tuple[str, ...] = ()
    labels: int = 0
    curves: bool = False
    seed: int = 0
    threads: int = 1
    cache: Path | None = None


def evaluate(
    checkpoint: Checkpoint,
    corpus: Corpus,
    config: EvaluationConfig | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return scores of a checkpoint on a corpus in the form of its `metrics.json`.

    Args:
        checkpoint: to be judged.
        corpus: measured programs, of any framework.
        note: called with a line on what is being done.

    Returns:
        format, corpus, split, tasks, programs, and results: for "model" and each baseline top1, top5,
        mean_top1, mean_top5, pairwise; with labels also few_shot: their number -> the scores; curves where asked.

    Raises:
        DeviceKindError: the checkpoint is for the other kind of device.
        CorpusError: the corpus has nothing in this split.
        TrainingError: labels, and the model takes none as context.
        TchubError: a subclass for each other way this can fail.
    """
    config = config or EvaluationConfig()
    split, seed, cache = config.split, config.seed, config.cache
    own = checkpoint.device.name == corpus.meta["device"]
    device = checkpoint.device if own else corpus_device(corpus)
    require_kind(checkpoint, device)
    store = StatementStore(cache, workers=config.threads)
    data = load_part(corpus, split, get_schema(checkpoint.config.feature_schema), device, store)
    if data is None:
        raise CorpusError(
            f"{corpus.path} has no task with enough valid programs in its {split} split",
            remedy="choose another --split, or collect tasks of the held-out networks",
            corpus=str(corpus.path),
            split=split,
        )
    scores = predict(checkpoint.model, data.features)
    results: dict[str, Any] = {"model": evaluate_scores(scores, data.latency, data.group, data.task_weights)}
    more: dict[str, Any] = {}
    if config.labels:
        unknown = few_shot_scores(checkpoint.model, data, config.labels, seed)
        more["few_shot"] = {str(config.labels): evaluate_unknown(data, draw_labels(data, config.labels, seed), unknown)}
    if config.curves:
        ranked = RankedPrograms(corpus.path.resolve().name, corpus.tasks, data, scores, computations(corpus))
        more["curves"] = measure_curves([ranked])
    for name in config.baselines:
        note(f"baseline: {name}")
        if name == "random":
            results[name] = evaluate_random(data.latency, data.group, data.task_weights)
        elif name == "xgboost":
            results[name] = _evaluate_xgboost(corpus, split, seed, config.threads, cache, note)
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
        **more,
    }


def _evaluate_ten_percent(
    checkpoint: Checkpoint, corpus: Corpus, data: RankingDataset, seed: int, store: StatementStore
) -> dict[str, float]:
    recipe = checkpoint.config.training.get("recipe")
    known = {field.name for field in fields(TrainConfig)}  # settings of other releases had no part in this one's
    own = TrainConfig.from_dict({k: v for k, v in recipe.items() if k in known}) if recipe else None
    config = own or _default_recipe(checkpoint)
    shares = [Share(programs=FEW_DATA, seed=seed + i) for i in range(FEW_RUNS)]
    samples = [load_training_data(corpus, (), config.feature_schema, share, store) for share in shares]
    runs = [fit(sample, config, sample.share.seed) for sample in samples]
    scores = [evaluate_model(run.checkpoint.model, data) for run in runs]
    return {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}


def _default_recipe(checkpoint: Checkpoint) -> TrainConfig:
    """Return the shipped recipe of the architecture, for a checkpoint without a recipe of its own.

    For a knowledge base or an ensemble it is that of their networks: no recipe trains the rest.
    """
    arch = get_architecture(checkpoint.config.arch).base or checkpoint.config.arch
    own = {f.name for f in fields(get_architecture(arch).config)}
    settings = {name: value for name, value in checkpoint.config.model.items() if name in own}
    return replace(TrainConfig.find(arch), model=settings)


@dataclass(frozen=True)
class StatementPrograms:
    """Programs of a part of the split that have statement features, and their share of all programs."""

    features: list[np.ndarray]
    latency: np.ndarray
    group: np.ndarray
    weights: np.ndarray
    share: float


def _evaluate_xgboost(
    corpus: Corpus, split: str, seed: int, threads: int, cache: Path | None, note: Callable[[str], None]
) -> dict[str, Any]:
    """Train XGBoost on the training tasks of a corpus and return its scores on a split.

    It is MetaSchedule's own model where the programs can be replayed, else trees on primitives; `label` says which.
    Of the former `tasks` and `programs` count those that could be replayed and ranked.

    Raises:
        CorpusError: no training task has enough programs.
    """
    judged = _read(corpus, split, threads, cache, note)
    train = _read(corpus, "train", threads, cache, note) if judged.share >= REPLAYED else None
    if train is None or train.share < REPLAYED:
        note(f"{(train or judged).share:.0%} of the programs can be replayed: XGBoost reads primitives")
        return _on_primitives(corpus, split, seed)
    best = np.full(len(train.weights), np.inf)
    np.minimum.at(best, train.group, train.latency)
    labels = best[train.group] / train.latency
    note(f"training XGBoost on {len(labels)} programs, {sum(map(len, train.features))} statements")

    def report(number: int, error: float) -> None:
        if number % _NOTE_EVERY == 0:
            note(f"XGBoost round {number}, training error {error:.5f}")

    model = PackSumXGBoost(seed=PackSumXGBoost.seed + seed, threads=threads).fit(train.features, labels, report)
    scores = evaluate_scores(model.predict(judged.features), judged.latency, judged.group, judged.weights)
    counts = {"tasks": len(np.unique(judged.group)), "programs": len(judged.latency)}
    return {**scores, **counts, "label": STATEMENTS}


def _on_primitives(corpus: Corpus, split: str, seed: int) -> dict[str, Any]:
    """Rank by trees on the primitives; their number is chosen on the validation tasks."""
    training = load_training_data(corpus, (), "tlp")
    ranker = fit_trees(XGBoostRanker(), training, seed).ranker
    data = load_part(corpus, split, training.schema)
    assert data is not None  # `evaluate` has read this part
    return {**evaluate_trees(ranker, data), "label": PRIMITIVES}


def _read(
    corpus: Corpus, part: str, workers: int, cache: Path | None, note: Callable[[str], None]
) -> StatementPrograms:
    """Return programs in the order in which training reads them, without tasks of which one program is left."""
    from ...zoo.corpus.replay.statements import statement_features

    usable = usable_programs(corpus, split_tasks(corpus).part(part))
    programs = [program for same in usable.values() for program in same]
    group = np.repeat(np.arange(len(usable)), [len(same) for same in usable.values()])
    note(f"statement features: {len(programs)} programs of {len(usable)} tasks ({part})")
    with tempfile.TemporaryDirectory() as passing:
        features, failures = statement_features(corpus, programs, cache or passing, workers)
    good = np.ones(len(programs), dtype=bool)
    good[list(failures)] = False
    kept = np.flatnonzero(good & (np.bincount(group[good], minlength=len(usable))[group] > 1))
    return StatementPrograms(
        features=[features[i] for i in kept],
        latency=np.array([programs[i].latency for i in kept]),
        group=group[kept],
        weights=np.array([metric_weight(corpus.tasks[task_id]) for task_id in usable], dtype=np.float64),
        share=len(kept) / max(1, len(programs)),
    )
