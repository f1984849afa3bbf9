"""What `tchub adapt` itself makes of sources, asked as the benchmark's own methods are: its methods, its averages."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tchub.zoo.adapt.averaging import fisher_average
from tchub.zoo.adapt.continual import fisher_diagonal
from tchub.zoo.adapt.continual.method import Continual
from tchub.zoo.adapt.ensemble import EnsembleMethod
from tchub.zoo.adapt.method import SourceData, TrainingSet
from tchub.zoo.models import CostModel
from tchub.zoo.training import RankingDataset
from tchub.zoo.training.programs import corpus_device

from scripts.benchmarks.transfer.continual import gone_on, learn_more
from scripts.benchmarks.transfer.data import cut
from scripts.benchmarks.transfer.models import Made, kept_model
from scripts.benchmarks.transfer.ours import on_strata
from scripts.zoo.build import open_corpus

if TYPE_CHECKING:
    from scripts.benchmarks.transfer.case import Case

# Programs of a corpus's task that `tchub adapt --from` learns at most.
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
    """`--method continual`: a model of the first source, and the others' corpora by `--from`."""
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
