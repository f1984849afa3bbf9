"""`committee`: the fine-tuned base, and beside it a network that knows the labels alone; both answer."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..models import Committee, ContextModel, CostModel, get_architecture
from ..training.dataset import RankingDataset
from .fresh import train_fresh
from .kept_models import kept_model
from .methods import FewShot, Learnt, Lesson, keeping, learning_marks

# Labels of a task from which on the network from random weights counts `MOST` of what the base counts.
ENOUGH, MOST = 16, 0.5
# Scores that differ by less than this part of them are one score in float32.
_NOTHING = 1e-6


class CommitteeWithFresh:
    """What the labels say without the base corrects a base that misleads, and errs in other places than it.

    The base is fine-tuned as `few-shot` does it, and a second network of its kind learns the labels from random
    weights. The more labels of a task there are, the more the second one counts (`fresh_share`).
    """

    name: ClassVar[str] = "committee"
    near: ClassVar[bool] = False

    def missing(self, base: CostModel, sources: int) -> str | None:
        """See `Method.missing`: a plain network, of which there can be a second one."""
        known = get_architecture(base.arch)
        if known.weights != "safetensors":
            return f"a {base.arch} is made of trees, which gradients do not move"
        return f"it is made of plain networks, and this is a {known.kind}" if known.base else None

    def start(self, lesson: Lesson) -> Learnt:
        """The base."""
        return Learnt(lesson.base, {})

    def learn(self, start: CostModel, lesson: Lesson) -> Learnt:
        """A `Committee` of the fine-tuned start and of a network from random weights, which is kept when it is done."""
        tuned = keeping(FewShot())(start, lesson)  # `auto` has tried it, and it takes a TCL long
        marks = ("fresh", *learning_marks(self.name, start, lesson))
        fresh, _ = kept_model(lesson.folder, marks, lambda: (train_fresh(start, lesson.data, lesson.seed), {}))
        share = fresh_share(lesson.data)
        shares = ((1 - share) * unit(tuned.model, lesson.data), share * unit(fresh, lesson.data))
        return Learnt(Committee.around([tuned.model, fresh], shares), tuned.facts | {"fresh_share": round(share, 4)})


def fresh_share(data: RankingDataset) -> float:
    """How much of a committee the network from random weights is, 0 to 1, by the labels of a task that has some."""
    sizes = [len(members) for members in data.members if len(members)]
    weight = MOST * min(1.0, float(np.mean(sizes)) / ENOUGH)
    return weight / (1 + weight)


def unit(model: CostModel, data: RankingDataset) -> float:
    """What brings a model's scores to the spread of -log(latency) within a task.

    1 for a model that takes context: its scores are estimates of it. The losses of others know orders and no units, so
    that one member would outvote another by being louder. 0 for a model that says the same of all programs.

    Args:
        model: any network; data: measured programs.
    """
    if isinstance(model, ContextModel):
        return 1.0
    scores, speed = model.score(data.features), -np.log(data.latency)
    spread = _spread(scores, data)
    return _spread(speed, data) / spread if spread > _NOTHING * np.abs(scores).max() else 0.0


def _spread(values: np.ndarray, data: RankingDataset) -> float:
    """Standard deviation within tasks."""
    apart = [values[members] - values[members].mean() for members in data.members if len(members)]
    return float(np.concatenate(apart).std())
