"""tchub's own way to use sources and measured programs together: the method that the others are compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from tchub.zoo.adapt.sampling import Pool, StrataSampler
from tchub.zoo.adapt.view import ModelView
from transfer_continual import EQUATIONS, bases, column_of, is_base
from transfer_data import SHARE

if TYPE_CHECKING:
    from tchub.zoo.models import CostModel
    from tchub.zoo.training import RankingDataset
    from transfer_methods import Case


def ours(case: Case) -> tuple[np.ndarray, int, np.ndarray]:
    """A knowledge base's column on programs that the base chose: `tchub adapt --method continual --sampler strata`.

    As many programs are measured as for every other method.

    Chosen on validation tasks of the K80, pairwise accuracy, labels not taken as context: four labels a task, two
    seeds, random 0.858, strata 0.866; sixteen, one seed, 0.895 and 0.902; a tenth of the training tasks, one seed,
    0.861 and 0.864. Eight labels, one seed: 0.883 and 0.855, on the MI50 0.845 and 0.849.

    Returns:
        (N,) scores of the judging tasks' programs, the model's parameters, and (N,) bool the measured programs.
    """
    base = is_base(bases(case, case.taught, EQUATIONS)[-1])
    case = on_strata(case, base.kb)
    column = column_of(base, case)
    return case.told(column), column.parameter_count(), case.known


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


def _view(model: CostModel, features: np.ndarray) -> ModelView:
    return ModelView.of(model, features, [], np.zeros(0))
