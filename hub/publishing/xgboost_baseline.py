"""XGBoost as a baseline: MetaSchedule's own model where the programs can be replayed, else trees on primitives."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...zoo.training import evaluate_scores
from ...zoo.training.baselines import TREES, PackSumXGBoost, XGBoostConfig, evaluate_trees, fit_trees
from ...zoo.training.fit import load_parts
from ...zoo.training.programs import corpus_device
from ...zoo.training.training_data import load_training_data

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus

STATEMENTS, PRIMITIVES = "XGBoost on PerStoreFeature", "XGBoost on primitives"
# Statements are read where at least this share of the programs to be ranked can be replayed.
REPLAYED = 0.9
_TELL_EVERY = 100


@dataclass(frozen=True)
class _Statements:
    """Programs of a part of the split that have statement features, and the share of all that they are."""

    features: list[np.ndarray]
    latency: np.ndarray
    group: np.ndarray
    weights: np.ndarray
    share: float


def evaluate_xgboost(
    corpus: Corpus,
    split: str,
    *,
    seed: int = 0,
    threads: int = 1,
    cache: Path | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Trains on the training tasks of a corpus and ranks those of a split.

    Args:
        corpus: of any framework.
        split: the part to rank.
        seed: of the booster.
        threads: of the booster, and processes that replay.
        cache: folder for statement features.
        note: told what is being done.

    Returns:
        The scores, and which model it was as `label`: `STATEMENTS` or `PRIMITIVES`; of the former also how many
        `programs` of how many `tasks` were ranked, for those that cannot be replayed are left out.

    Raises:
        EmptyDatasetError: no training task has enough programs.
        MissingPackageError: xgboost is not installed.
    """
    judged = _read(corpus, split, threads, cache, note)
    known = _read(corpus, "train", threads, cache, note) if judged.share >= REPLAYED else None
    if known is None or known.share < REPLAYED:
        note(f"{(known or judged).share:.0%} of the programs can be replayed: XGBoost reads primitives")
        return _on_primitives(corpus, split, seed)
    best = np.full(len(known.weights), np.inf)
    np.minimum.at(best, known.group, known.latency)
    labels = best[known.group] / known.latency
    config = XGBoostConfig(seed=XGBoostConfig.seed + seed, threads=threads)
    note(f"training XGBoost on {len(labels)} programs, {sum(map(len, known.features))} statements")

    def tell(number: int, error: float) -> None:
        if number % _TELL_EVERY == 0:
            note(f"XGBoost round {number}, training error {error:.5f}")

    model = PackSumXGBoost(config).fit(known.features, labels, tell)
    scores = evaluate_scores(model.predict(judged.features), judged.latency, judged.group, judged.weights)
    counts = {"tasks": len(np.unique(judged.group)), "programs": len(judged.latency)}
    return {**scores, **counts, "label": STATEMENTS}


def _on_primitives(corpus: Corpus, split: str, seed: int) -> dict[str, Any]:
    """Rank by trees on the primitives; their number is chosen on the validation tasks."""
    schema, _ = TREES["xgboost"]
    ranker = fit_trees("xgboost", load_training_data(corpus, (), schema), seed).ranker
    data = load_parts(corpus, schema, corpus_device(corpus), (split,))[split]
    return {**evaluate_trees(ranker, data), "label": PRIMITIVES}


def _read(corpus: Corpus, part: str, workers: int, cache: Path | None, note: Callable[[str], None]) -> _Statements:
    """Programs in the order in which training reads them; tasks left with one program are left out."""
    from ...zoo.corpus import metric_weight, split_tasks, usable_programs
    from ...zoo.corpus.replay.statements import statement_features

    usable = usable_programs(corpus, split_tasks(corpus).part(part)).programs
    programs = [program for same in usable.values() for program in same]
    group = np.repeat(np.arange(len(usable)), [len(same) for same in usable.values()])
    note(f"statement features: {len(programs)} programs of {len(usable)} tasks ({part})")
    with tempfile.TemporaryDirectory() as passing:
        made, failures = statement_features(corpus, programs, cache or passing, workers)
    good = np.ones(len(programs), dtype=bool)
    good[[failure.index for failure in failures]] = False
    kept = np.flatnonzero(good & (np.bincount(group[good], minlength=len(usable))[group] > 1))
    return _Statements(
        features=[made[i] for i in kept],
        latency=np.array([programs[i].latency for i in kept]),
        group=group[kept],
        weights=np.array([metric_weight(corpus.tasks[task_id]) for task_id in usable], dtype=np.float64),
        share=len(kept) / max(1, len(programs)),
    )
