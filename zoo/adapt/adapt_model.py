"""The registry of methods, and `adapt_model`: by the method asked for, or by the one that ranks best (`auto`).

Every method is cross-validated on the labels to learn from, never on the hold-out: that chooses between methods, tells
how far to go from the start to the result, and gives the guard a second opinion (`nested_gain`).

The labels of each task are split at random into folds. A model learns from all folds but one and ranks the programs of
that one, with the programs it learnt from as context where it takes any. Only pairs within a fold count: with one
program learnt and one not, a model that remembers the first would seem to know the second. Programs that a model has
learnt before are learnt here again, and judge nothing (`TrainingSet.unseen`).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..models import CostModel
from ..training.dataset import RankingDataset
from ..training.evaluation import informed_scores
from ..training.metrics import count_pairs, tally_pairs
from .continual.device import Continual
from .errors import AdaptError
from .method import EnsembleMethod, FewShot, Method, TrainedModel, TrainingSet
from .multi_task import MultiTask

Learn = Callable[[CostModel, TrainingSet], TrainedModel]
# Shares of the way from the start to the result to choose from; whether to go at all is the guard's decision.
STRENGTHS = (0.25, 0.5, 0.75, 1.0)
# Pairs below which nothing is decided: the standard error of an accuracy is then above 9 points.
MIN_PAIRS = 30
# Labels of a typical task from which on three folds, which leave more to learn from, have pairs enough.
THREE_FOLDS = 9


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """The counts of one method.

    Attributes:
        strengths: those that were tried, of the weights between start and end.
        right: (1 + strengths, folds, T) pairs in the right order, a tie half; the first row is of the incumbent.
        total: (folds, T) pairs.
    """

    strengths: tuple[float, ...]
    right: np.ndarray
    total: np.ndarray

    @property
    def base(self) -> float:
        """Pairwise accuracy of the incumbent."""
        return _mean_accuracy(self.right[0], self.total)

    @property
    def strength(self) -> float:
        """The best strength; of equal ones the smallest."""
        return self.strengths[self.best()[1] - 1]

    @property
    def accuracy(self) -> float:
        """Pairwise accuracy of the best strength, on the pairs that chose it."""
        return self.best()[0]

    def best(self, without: int | None = None) -> tuple[float, int]:
        """Return the best accuracy of a strength on all folds (but one), and its row; of equal ones the first."""
        folds = np.arange(len(self.total)) != without
        accuracy = [_mean_accuracy(right, self.total[folds]) for right in self.right[1:, folds]]
        row = int(np.argmax(accuracy))
        return accuracy[row], 1 + row


def nested_gain(results: Sequence[CrossValidation]) -> float:
    """Return the gain over the incumbent of choosing method and strength on all folds but one, counted on that one."""
    total = results[0].total
    right = np.empty_like(total)
    for fold in range(len(total)):
        (_, row), winner = max(((one.best(without=fold), one) for one in results), key=lambda pair: pair[0][0])
        right[fold] = winner.right[row, fold]
    return _mean_accuracy(right, total) - results[0].base


def cross_validate(learn: Learn, start: CostModel, training_set: TrainingSet, *, near: bool) -> CrossValidation | None:
    """Judge a method by the labels to learn from; None where those that judge have too few pairs (`MIN_PAIRS`).

    `start` knows none of the labels; `near`: weights between the start and the result make sense.
    """
    data = training_set.data
    fold = make_folds(data, training_set.seed)
    judging = fold if training_set.unseen is None else np.where(training_set.unseen, fold, -1)
    if sum(count_pairs(data.latency[members]) for members in _groups(data, judging)) < MIN_PAIRS:
        return None
    strengths = STRENGTHS if near else (1.0,)
    scores = np.full((1 + len(strengths), len(data)), np.nan)
    config = replace(training_set.config, refit=False)
    incumbent, features = training_set.incumbent or training_set.base, training_set.incumbent_features
    for part in range(fold.max() + 1):
        held, rest = np.flatnonzero(fold == part), np.flatnonzero(fold != part)
        known, group = data.take(rest), data.group[held]
        trusted = training_set.incumbent_trusted
        scores[0, held] = informed_scores(incumbent, features[held], group, known, features[rest], trusted)
        result = learn(start, replace(training_set, data=known, config=config))
        for row, strength in enumerate(strengths, start=1):
            model = blend(start, result.model, strength)
            scores[row, held] = informed_scores(model, data.features[held], group, known)
    right, total = zip(*(_tally(data, judging, row) for row in scores), strict=True)
    return CrossValidation(strengths, np.stack(right), total[0])


def blend(start: CostModel, end: CostModel, strength: float) -> CostModel:
    """Return a model with weights start + strength * (end - start).

    Few labels point a model the right way more surely than they tell how far to go: a part of the way often ranks
    unseen programs better than all of it, as an average of weights along the way does. Both are of one architecture and
    size unless the strength is 1.
    """
    if strength == 1:
        return end
    ours, theirs, mixed = start.state_dict(), end.state_dict(), copy.deepcopy(end)
    mixed.load_state_dict(
        {k: v.lerp(theirs[k], strength) if v.is_floating_point() else theirs[k] for k, v in ours.items()}
    )
    return mixed.eval()


def make_folds(data: RankingDataset, seed: int) -> np.ndarray:
    """Return the fold of each program, (N,) int64: each task is dealt out evenly, in random order."""
    sizes = [len(members) for members in data.members if len(members)]
    folds = 3 if np.median(sizes) >= THREE_FOLDS else 2
    rng = np.random.default_rng([seed, 7])
    fold = np.empty(len(data), np.int64)
    for members in data.members:
        fold[rng.permutation(members)] = (np.arange(len(members)) + rng.integers(folds)) % folds
    return fold


def _groups(data: RankingDataset, fold: np.ndarray) -> list[np.ndarray]:
    """Return the programs of each task and fold; a fold of -1 is none."""
    return [members[fold[members] == part] for members in data.members for part in range(fold.max() + 1)]


def _tally(data: RankingDataset, fold: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the pairs of each task and fold in the right order, (folds, T), a tie being half right; and all pairs."""
    right, total = np.zeros((2, fold.max() + 1, len(data.task_ids)))
    for members in _groups(data, fold):
        if len(members):
            cell = fold[members[0]], data.group[members[0]]
            right[cell], total[cell] = tally_pairs(scores[members], data.latency[members])
    return right, total


def _mean_accuracy(right: np.ndarray, total: np.ndarray) -> float:
    """Return the mean over tasks of the share of right pairs, each (folds, T); 1/2 where there is none."""
    right, total = right.sum(axis=0), total.sum(axis=0)
    return float((right[total > 0] / total[total > 0]).mean()) if total.any() else 0.5


AUTO = "auto"
# In the order in which they assume more.
METHODS: dict[str, Method] = {m.name: m for m in (FewShot(), EnsembleMethod(), Continual(), MultiTask())}


@dataclass(frozen=True)
class MethodScore:
    """The cross-validation of one method, or why it was not tried (`missing`).

    Attributes:
        accuracy, base: cross-validated pairwise accuracy with it, at its best strength, and of the incumbent; None:
            too few labels.
        strength: share of the way from the start to the result.
    """

    method: str
    accuracy: float | None = None
    base: float | None = None
    strength: float = 1.0
    missing: str | None = None


@dataclass(frozen=True)
class AdaptedModel:
    """The result of adapting: the model, the method that made it and why, all that were tried, facts of the training.

    `strength` is the share of the way from its start that was taken; `learnt_gain`: see `nested_gain`.
    """

    model: CostModel
    method: str
    strength: float
    learnt_gain: float | None
    reason: str
    tried: tuple[MethodScore, ...]
    facts: dict[str, Any]


def check_method(name: str) -> None:
    """Raise AdaptError unless `name` is a method or `auto`."""
    if name != AUTO and name not in METHODS:
        raise AdaptError(f"no method is called {name!r}", remedy=f"choose one of: {', '.join((*METHODS, AUTO))}")


def applying(name: str, base: CostModel, sources: int) -> tuple[list[Method], list[MethodScore]]:
    """Return the methods of a name that can adapt `base` with so many corpora, and why the others of `auto` cannot.

    Raises:
        AdaptError: no such method, it lacks something, or corpora are given of which it would learn nothing.
    """
    check_method(name)
    asked = list(METHODS.values()) if name == AUTO else [METHODS[name]]
    missing = {method.name: method.missing(base, sources) for method in asked}
    if name != AUTO and (lack := missing[name]) is not None:
        raise AdaptError(
            f"{name} cannot adapt this {base.arch}: {lack}",
            remedy=f"give what it lacks, or choose another --method: {', '.join((*METHODS, AUTO))}",
        )
    methods = [method for method in asked if missing[method.name] is None]
    if sources and not any(method.learns_corpora for method in methods):
        able = [m.name for m in METHODS.values() if m.learns_corpora and m.missing(base, sources) is None]
        raise AdaptError(
            f"{name} learns nothing from corpora, and {sources} of them are named",
            remedy=f"choose --method {', '.join(able)} or {AUTO}, or leave the corpora out of --sources",
        )
    return methods, [MethodScore(method, missing=lack) for method, lack in missing.items() if lack is not None]


def adapt_model(
    name: str, training_set: TrainingSet, on_method: Callable[[str, str], None] = lambda name, step: None
) -> AdaptedModel:
    """Adapt a model by a method, or with `auto` by the best of all; `on_method` gets its name and the step it begins.

    Raises:
        AdaptError: no such method, or it lacks something.
        LabelError: the labels have no order to learn.
    """
    methods, refused = applying(name, training_set.base, len(training_set.sources))
    # Cross-validation, whose parts have fewer labels, judges the kind of update that all of them get.
    config = training_set.config
    training_set = replace(training_set, config=replace(config, update=config.update_for(len(training_set.data))))
    trials: list[tuple[Method, TrainedModel, CrossValidation | None]] = []
    for method in methods:
        on_method(method.name, "start")
        start = method.start(training_set)
        on_method(method.name, "cross-validate")
        trials.append((method, start, cross_validate(method.learn, start.model, training_set, near=method.near)))
    method, start, validation = max(trials, key=lambda one: -1.0 if one[2] is None else one[2].accuracy)
    on_method(method.name, "learn")
    result = method.learn(start.model, training_set)
    strength = validation.strength if validation else 1.0
    by_name = {one.name: validated for one, _, validated in trials if validated is not None}
    scores = [
        MethodScore(one.name, cv.accuracy, cv.base, cv.strength) if cv else MethodScore(one.name)
        for one, _, cv in trials
    ]
    model, gain = blend(start.model, result.model, strength), nested_gain([*by_name.values()]) if by_name else None
    reason, facts = _reason(name, by_name, method.name), start.facts | result.facts
    return AdaptedModel(model, method.name, strength, gain, reason, (*scores, *refused), facts)


def _reason(asked: str, validated: Mapping[str, CrossValidation], chosen: str) -> str:
    if asked != AUTO:
        return "it was asked for"
    if not validated:
        return "the labels are too few to compare methods by; it assumes least"
    known = ", ".join(f"{name} {one.accuracy:.3f}" for name, one in validated.items())
    best = validated[chosen]
    verdict = "is best" if round(best.accuracy, 3) > round(best.base, 3) else "is best, but no better than the base"
    return f"cross-validated pairwise accuracy on the labels: base {best.base:.3f}, {known}; {chosen} {verdict}"
