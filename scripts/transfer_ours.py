"""tchub's own way to use sources and measured programs together: the method that the others are compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from transfer_continual import PAPERS, bases, column_of, is_base
from transfer_data import SHARE

if TYPE_CHECKING:
    from tchub.zoo.models import CostModel
    from tchub.zoo.training import RankingDataset
    from transfer_methods import Case

# Below so many labels a task the column answers alone.
FEW_LABELS = 8


def ours(case: Case) -> tuple[np.ndarray, int, np.ndarray]:
    """A knowledge base's column on programs that the base chose: even strata of its scores within each task.

    As many programs are measured as for every other method. With some labels of the very task the column's scores
    are averaged with those of the fine-tuned model of all sources, for the two err on other devices.

    Chosen on validation tasks, pairwise accuracy, one seed unless told: K80, four labels a task, two seeds, random
    0.858, strata 0.866, medoids 0.854; eight, random or strata, column 0.883 or 0.855, fine-tuned 0.859 or 0.855, both
    0.883 or 0.863; sixteen 0.895 or 0.902, 0.874 or 0.900, 0.894 or 0.907. MI50, eight, 0.845 or 0.849, 0.858 or 0.855,
    0.856 or 0.857; sixteen 0.868 or 0.873, 0.880 or 0.879, 0.878 or 0.878. A tenth of the K80's training tasks, random
    or strata: 0.861 or 0.864. A network that knows nothing but the labels made every average worse.

    Returns:
        (N,) scores of the judging tasks' programs, the models' parameters, and (N,) bool the measured programs.
    """
    base = is_base(bases(case, case.taught, PAPERS)[-1])
    rng = np.random.default_rng([case.seed, case.labels])
    tenth = strata(base.kb, case.scene.own, [round(SHARE * len(m)) for m in case.scene.own.members], rng)
    known = np.zeros(len(case.judged), dtype=bool)
    if case.labels:
        known[strata(base.kb, case.judged, [min(case.labels, len(m) // 2) for m in case.judged.members], rng)] = True
    case = replace(case, drawn=tenth, chosen=known)
    models: list[CostModel] = [column_of(base, case, PAPERS)]
    if case.protocol == "in-task" and case.labels >= FEW_LABELS:
        models.append(fine_tune(case.base().model, case.measured, FineTuneConfig(seed=case.seed)).model)
    scores = [standardised(model.score(case.judged.features), case.judged, known) for model in models]
    return np.mean(scores, axis=0), sum(model.parameter_count() for model in models), known


def strata(model: CostModel, data: RankingDataset, counts: list[int], rng: np.random.Generator) -> np.ndarray:
    """Places of programs, sorted: of each task's programs in the order of a model's scores one of every n-th part.

    Args:
        model: orders the programs.
        data: the programs.
        counts: picks of each task; at least two where it has two programs.
        rng: draws within a part.
    """
    scores = model.score(data.features)
    picks = [
        [rng.choice(part) for part in np.array_split(members[np.argsort(scores[members])], max(count, 2))]
        for members, count in zip(data.members, counts, strict=True)
        if len(members) > 1
    ]
    return np.sort(np.concatenate(picks)).astype(np.int64)


def standardised(scores: np.ndarray, data: RankingDataset, known: np.ndarray) -> np.ndarray:
    """(N,) scores with mean 0 and deviation 1 over the unmeasured programs of each task."""
    found = np.array(scores, dtype=np.float64)
    for members in data.members:
        rest = scores[members[~known[members]]]
        if len(rest):
            found[members] = (scores[members] - rest.mean()) / max(float(rest.std()), 1e-12)
    return found
