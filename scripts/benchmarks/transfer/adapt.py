"""What `tchub adapt` itself makes of sources, asked as the benchmark's own methods are: its methods, its averages."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tchub.zoo.adapt.continual import ContinualConfig, fisher_diagonal
from tchub.zoo.adapt.continual.device import Continual
from tchub.zoo.adapt.method import EnsembleMethod, SourceData, TrainingSet
from tchub.zoo.adapt.sampling import Pool, PoolPredictions, StrataSampler
from tchub.zoo.models import CostModel
from tchub.zoo.training import RankingDataset
from tchub.zoo.training.programs import corpus_device
from torch import Tensor

from scripts.benchmarks.transfer.case import Answer, Case, train_new
from scripts.benchmarks.transfer.continual import gone_on, learn_more
from scripts.benchmarks.transfer.data import SHARE, cut
from scripts.zoo.plan import open_corpus

# Programs of a corpus's task that `tchub adapt --sources` learns at most.
FROM_CORPUS = 200
MEMBERS = 3
# Labels of a task from which models of no source have a say, and those from which they have as much as the others.
FRESH_FROM, FRESH_EQUAL = 8, 16
# Importance of every weight in an average, beside a mean of 1: one that no model needs is averaged plainly.
LEAST_IMPORTANCE = 1e-3


def ensemble(case: Case, base: CostModel) -> Answer:
    """`--method ensemble --sampler strata`."""
    case = on_strata(case, base)
    return case.answer(EnsembleMethod().learn(base, _training_set(case, base)).model)


def continual(case: Case) -> Answer:
    """`--method continual`: a model of the first source, and the others' corpora by `--sources`."""
    first, *others = case.scene.sources
    sources = []
    for name in others:
        data = case.given(name)
        device = corpus_device(open_corpus(name))
        sources.append(SourceData(name, device, cut(data, data.task_ids, FROM_CORPUS)))
    known = case.given(first).features[:1]
    training_set = _training_set(case, case.alone(first), sources=tuple(sources), known_devices=known)
    method = Continual()
    return case.answer(method.learn(method.start(training_set).model, training_set).model)


def merged(case: Case) -> Answer:
    """A model of the first source goes on with each other one apart; the average of all by what each weight is worth.

    Averages are of models that share a start and the scales of their columns, which is why the first source begins.
    """
    first, *others = case.scene.sources
    base = copy.deepcopy(case.alone(first))
    for name in others:
        base.admit(torch.from_numpy(case.given(name).features[:1]))
    models = {first: base} | {name: _moved_on(case, base, name) for name in others}
    worths = [fisher_diagonal(model, case.given(name), ContinualConfig()) for name, model in models.items()]
    return case.answer(gone_on(fisher_average(list(models.values()), worths), case))


def fisher_average(models: Sequence[CostModel], fishers: Sequence[Mapping[str, Tensor]]) -> CostModel:
    """Average models of one start, each weight in proportion to how much each depends on it (Matena and Raffel 2022).

    Networks of different random weights would have their units in another order. `fishers` are the `fisher_diagonal` of
    each model on its own device, here scaled to a mean of 1, so that larger losses give no more influence.
    """
    sums = [sum(float(f.sum()) for f in fisher.values()) for fisher in fishers]
    means = [total / sum(f.numel() for f in fisher.values()) for total, fisher in zip(sums, fishers, strict=True)]
    average = copy.deepcopy(models[0])
    with torch.no_grad():
        for name in fishers[0]:
            parts = zip(fishers, means, strict=True)
            weights = torch.stack([fisher[name] / (mean or 1.0) + LEAST_IMPORTANCE for fisher, mean in parts])
            values = torch.stack([model.get_parameter(name) for model in models])
            average.get_parameter(name).copy_((weights * values).sum(dim=0) / weights.sum(dim=0))
    return average


def _moved_on(case: Case, base: CostModel, name: str) -> CostModel:
    """A copy of a model that learnt a source, gently."""
    return case.kept(
        f"moved-on/{case.scene.sources[0]}-{name}-{case.seed}",
        lambda: learn_more(base, case.given(name), case.arch, case.seed),
    )


def _training_set(case: Case, base: CostModel, **more: Any) -> TrainingSet:
    return TrainingSet(base, case.measured, case.measured.features, case.scene.device, seed=case.seed, **more)


def ours(case: Case) -> Answer:
    """Three models of the sources, each fine-tuned on programs that the first one chose; the mean of their scores.

    With more labels three models from scratch join them, which know what the sources mislead about. As many programs
    are measured as for every other method.

    Chosen on training and validation tasks: three models hardly more than one, models from scratch where a task has
    labels enough for them to learn. `transfer --split val` has one model (`fine-tune-strata`), one of each
    kind (`committee`) and this side by side.
    """
    begun = [case.base(), *(case.base(100 * (case.seed + 1) + i) for i in range(1, MEMBERS))]
    case = on_strata(case, begun[0])
    answer = case.answer(*(gone_on(model, case) for model in begun))
    labels = len(case.measured) / len(case.measured.task_ids)
    if labels < FRESH_FROM:
        return answer
    weight, fresh = min(1.0, labels / FRESH_EQUAL), three_scratch(case)
    return replace(answer, scores=(answer.scores + weight * fresh.scores) / (1 + weight))


def three_scratch(case: Case) -> Answer:
    """As many models of no source, of other seeds: what part of the gain is that there are three."""
    seeds = (case.seed + 100 * i for i in range(MEMBERS))
    return case.answer(*(train_new(case.scene, case.measured, seed, case.arch) for seed in seeds))


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
    """Indices of programs, sorted: of each task so many as the sampler `strata` picks by a model's scores."""
    picks = [np.zeros(0, dtype=np.int64)]
    for members, count in zip(data.members, counts, strict=True):
        if count:
            pool = Pool(np.zeros(len(members), np.int64), ("task",))
            view = PoolPredictions.of(model, data.features[members], [], np.zeros(0))
            picks.append(members[StrataSampler().select(pool, [], count, view, rng).indices])
    return np.sort(np.concatenate(picks))
