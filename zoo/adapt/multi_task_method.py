"""`multi-task`: base and other devices' programs in one training, a head each; the target's head is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ..models import Committee, CostModel, Progressive
from ..training.config import TrainConfig
from .kept_models import mark_of
from .methods import Learnt, Lesson, learning_marks
from .multi_task import multi_task


class MultiTask:
    """Goes on from the base's weights, on the labels and all programs of the sources (TLP, section 5.2)."""

    name: ClassVar[str] = "multi-task"
    near: ClassVar[bool] = False

    def missing(self, base: CostModel, sources: int) -> str | None:
        """See `Method.missing`: programs of other devices, and one network to share."""
        if not sources:
            return "it learns beside programs of other devices: name folders of corpora with --from"
        if isinstance(base, Progressive):
            return "a knowledge base learns devices one after another, not at once"
        if isinstance(base, Committee):
            return "the members of a committee share no trunk"
        return None

    def start(self, lesson: Lesson) -> Learnt:
        """The base."""
        return Learnt(lesson.base, {})

    def learn(self, start: CostModel, lesson: Lesson) -> Learnt:
        """See `multi_task`; the architecture's own recipe, the last epoch. A run that is killed loses one at most."""
        config = replace(TrainConfig.find(start.arch), save_every=1)
        state = lesson.folder and lesson.folder / f"multi-task-{mark_of(learning_marks(self.name, start, lesson))}"
        parts = [source.data for source in lesson.sources]
        result = multi_task(start, lesson.data, parts, config, seed=lesson.seed, resume_dir=state)
        facts = {"programs": list(result.programs), "sources": [source.name for source in lesson.sources]}
        return Learnt(result.model, facts)
