"""tchub's own way to use sources and measured programs together: the method that the others are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from transfer_continual import PAPERS, bases, column_of, is_base

if TYPE_CHECKING:
    from tchub.zoo.training import RankingDataset
    from transfer_methods import Case

# Below so many labels a task, what is learnt from them alone misleads more than it adds.
LEAST_LABELS = 8


def ours(case: Case) -> tuple[np.ndarray, int]:
    """A knowledge base's column and a network that knows what was measured alone, each with the labels as context.

    Their scores are averaged, for they err on other programs. With very few labels the column answers alone.

    Returns:
        (N,) scores of the judging tasks' programs, NaN where one is measured, and the models' parameters.
    """
    column = column_of(is_base(bases(case, case.taught, PAPERS)[-1]), case, PAPERS)
    if case.protocol == "in-task" and case.labels < LEAST_LABELS:
        return column.score(case.judged.features), column.parameter_count()
    alone = case.train(case.measured).model
    scores = [standardised(case.told(model), case.judged, case.known) for model in (column, alone)]
    return np.mean(scores, axis=0), column.parameter_count() + alone.parameter_count()


def standardised(scores: np.ndarray, data: RankingDataset, known: np.ndarray) -> np.ndarray:
    """(N,) scores with mean 0 and deviation 1 over the unmeasured programs of each task."""
    found = np.array(scores, dtype=np.float64)
    for members in data.members:
        rest = scores[members[~known[members]]]
        if len(rest):
            found[members] = (scores[members] - rest.mean()) / max(float(rest.std()), 1e-12)
    return found
