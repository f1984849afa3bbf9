"""What `tchub adapt` itself makes of sources, asked as the benchmark's own methods are: its methods, its averages."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tchub.zoo.adapt.continual import fisher_average, fisher_diagonal
from tchub.zoo.adapt.continual.method import Continual
from tchub.zoo.adapt.ensemble import EnsembleMethod
from tchub.zoo.adapt.method import SourceData, TrainingSet
from tchub.zoo.adapt.sampling import Pool, PoolPredictions, StrataSampler
from tchub.zoo.models import CostModel
from tchub.zoo.training import RankingDataset
from tchub.zoo.training.programs import corpus_device

from scripts.benchmarks.transfer.case import Made, kept_model, train_new
from scripts.benchmarks.transfer.continual import gone_on, learn_more
from scripts.benchmarks.transfer.data import SHARE, cut
from scripts.zoo.build import open_corpus

if TYPE_CHECKING:
    from tchub.zoo.models import CostModel
    from tchub.zoo.training import RankingDataset

    from scripts.benchmarks.transfer.case import Case, Made


# Programs of a corpus's task that `tchub adapt --sources` learns at most.
FROM_CORPUS = 200


def committee(case: Case, base: CostModel) -> tuple[np.ndarray, int, np.ndarray]:
    """`--method ensemble --sampler strata`.

    Returns:
        (N,) scores of the judging tasks' programs, parameters, and (N,) bool the measured programs.
    """
    case = on_strata(case, base)
    made = EnsembleMethod().learn(base, _training_set(case, base)).model
    return case.told(made), made.parameter_count(), case.known


def continual(case: Case) -> tuple[np.ndarray, int]:
    """`--method continual`: a model of the first source, and the others' corpora by `--sources`."""
    first, *others = case.scene.sources
    training_set = _training_set(
        case,
        case.alone(first),
        sources=tuple(_corpus(name, case.given(name)) for name in others),
        known_devices=case.given(first).features[:1],
    )
    method = Continual()
    made = method.learn(method.start(training_set).model, training_set).model
    return case.told(made), made.parameter_count()


def merged(case: Case) -> tuple[np.ndarray, int]:
    """A model of the first source goes on with each other one apart; the average of all by what each weight is worth.

    Averages are of models that share a start and the scales of their columns, which is why the first source begins.
    """
    first, *others = case.scene.sources
    base = copy.deepcopy(case.alone(first))
    for name in others:
        base.admit(torch.from_numpy(case.given(name).features[:1]))
    models = {first: base} | {name: _moved_on(case, base, name) for name in others}
    worths = [fisher_diagonal(model, case.given(name)) for name, model in models.items()]
    model = gone_on(fisher_average(list(models.values()), worths), case)
    return case.told(model), model.parameter_count()


def _moved_on(case: Case, base: CostModel, name: str) -> CostModel:
    """A copy of a model that learnt a source, gently."""

    def make() -> Made:
        started = time.process_time()
        return Made(learn_more(base, case.given(name), case.arch, case.seed), time.process_time() - started)

    folder = case.models / case.scene.place / "moved-on" / f"{case.scene.sources[0]}-{name}-{case.seed}"
    return kept_model(folder, case.scene, make).model


def _corpus(name: str, data: RankingDataset) -> SourceData:
    return SourceData(name, corpus_device(open_corpus(name)), cut(data, data.task_ids, FROM_CORPUS))


def _training_set(case: Case, base: CostModel, **more: Any) -> TrainingSet:
    return TrainingSet(base, case.measured, case.measured.features, case.scene.device, seed=case.seed, **more)


MEMBERS = 3
# Labels of a task from which models of no source have a say, and those from which they have as much as the others.
FRESH_FROM, FRESH_EQUAL = 8, 16


def ours(case: Case) -> tuple[np.ndarray, int, np.ndarray]:
    """Three models of the sources, each fine-tuned on programs that the first one chose; the mean of their scores.

    With more labels three models from scratch join them, which know what the sources mislead about. As many programs
    are measured as for every other method.

    Chosen on training and validation tasks: three models hardly more than one, models from scratch where a task has
    labels enough for them to learn. `transfer --split val` has one model (`fine-tune-strata`), one of each
    kind (`committee`) and this side by side, `choices` the settings.

    Returns:
        (N,) scores of the judging tasks' programs, the models' parameters, and (N,) bool the measured programs.
    """
    begun = [made.model for made in starts(case)]
    case = on_strata(case, begun[0])
    scores, parameters = mean_scores([gone_on(model, case) for model in begun], case)
    if weight := fresh_weight(case.measured):
        fresh, more = three_scratch(case)
        scores, parameters = (scores + weight * fresh) / (1 + weight), parameters + more
    return scores, parameters, case.known


def fresh_weight(measured: RankingDataset) -> float:
    """Weight of the models from scratch beside those of the sources, 0 to 1, by the labels of a task."""
    labels = len(measured) / len(measured.task_ids)
    return min(1.0, labels / FRESH_EQUAL) if labels >= FRESH_FROM else 0.0


def mean_scores(models: list[CostModel], case: Case) -> tuple[np.ndarray, int]:
    """(N,) mean of what models say of the judging tasks' programs, and their parameters."""
    scores = np.mean([case.told(model) for model in models], axis=0)
    return scores, sum(model.parameter_count() for model in models)


def three_scratch(case: Case) -> tuple[np.ndarray, int]:
    """As many models of no source, of other seeds: what part of the gain is that there are three."""
    seeds = (case.seed + 100 * i for i in range(MEMBERS))
    return mean_scores([train_new(case.scene, case.measured, seed, case.arch).model for seed in seeds], case)


def starts(case: Case) -> list[Made]:
    """Models of the sources that differ by their seed; the first is every other method's."""
    return [case.base(), *(case.base(100 * (case.seed + 1) + i) for i in range(1, MEMBERS))]


def on_strata(case: Case, model: CostModel) -> Case:
    """The case with as many programs measured, chosen by a model: even strata of its scores within each task."""
    rng = np.random.default_rng([case.seed, case.labels])
    own, judged = case.scene.own, case.judged
    known = np.zeros(len(judged), dtype=bool)
    if case.labels:
        known[strata(model, judged, [min(case.labels, len(m) // 2) for m in judged.members], rng)] = True
    tenth = strata(model, own, [max(2, round(SHARE * len(m))) for m in own.members], rng)
    return replace(case, drawn=tenth, chosen=known)


def strata(model: CostModel, data: RankingDataset, counts: list[int], rng: np.random.Generator) -> np.ndarray:
    """Places of programs, sorted: of each task so many as the sampler `strata` picks by a model's scores."""
    picks = [np.zeros(0, dtype=np.int64)]
    for members, count in zip(data.members, counts, strict=True):
        if count:
            pool, view = Pool(np.zeros(len(members), np.int64), ("task",)), _view(model, data.features[members])
            picks.append(members[StrataSampler().select(pool, [], count, view, rng).indices])
    return np.sort(np.concatenate(picks))


def _view(model: CostModel, features: np.ndarray) -> PoolPredictions:
    return PoolPredictions.of(model, features, [], np.zeros(0))
