"""`committee`: the fine-tuned base, and beside it a network that knows the labels alone; both answer."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from ..models import Committee, ContextModel, CostModel, get_architecture
from ..training.dataset import RankingDataset
from .fine_tune import fine_tune
from .fresh import train_fresh
from .kept_models import kept_model
from .methods import Learnt, Lesson, learning_marks

# Labels of a task from which on the network from random weights counts `MOST` of what the base counts.
ENOUGH, MOST = 16, 0.5


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
        tuned = fine_tune(start, lesson.data, replace(lesson.config, seed=lesson.seed))
        marks = ("fresh", *learning_marks(self.name, start, lesson))
        fresh, _ = kept_model(lesson.folder, marks, lambda: (train_fresh(start, lesson.data, lesson.seed), {}))
        share = fresh_share(lesson.data)
        shares = ((1 - share) * slope(tuned.model, lesson.data), share * slope(fresh, lesson.data))
        facts = {"epochs": tuned.epochs, "validated": tuned.validated, "fresh_share": round(share, 4)}
        return Learnt(Committee.around([tuned.model, fresh], shares).eval(), facts)


def fresh_share(data: RankingDataset) -> float:
    """How much of a committee the network from random weights is, 0 to 1, by the labels of a task that has some."""
    sizes = [len(members) for members in data.members if len(members)]
    weight = MOST * min(1.0, float(np.mean(sizes)) / ENOUGH)
    return weight / (1 + weight)


def slope(model: CostModel, data: RankingDataset) -> float:
    """What turns a model's scores into estimates of -log(latency), up to the level of a task.

    1 for a model that takes context: its scores are such estimates. For others by least squares on measured programs,
    since their losses know orders and no units; 0 where their scores fall as the programs get faster.
    """
    if isinstance(model, ContextModel):
        return 1.0
    scores, speed = model.score(data.features), -np.log(data.latency)
    apart = [(scores[m] - scores[m].mean(), speed[m] - speed[m].mean()) for m in data.members if len(m)]
    s, y = (np.concatenate(part) for part in zip(*apart, strict=True))
    return max(0.0, float(s @ y) / max(float(s @ s), 1e-12))
