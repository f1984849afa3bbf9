"""Ways of adapting a model to a device, one interface: a start that knows none of its labels, and learning from them.

`few-shot` fine-tunes the base. `committee` sets a network that knows the labels alone beside it. `multi-task` trains
base and the sources' devices together, a head each. `continual` gives the base a second column that learns the device
while the base is frozen (TCL, section 6); corpora of other devices are learnt first, and nothing is distilled after the
target, which is the last (section 7.4.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ..models import CostModel
from ..training.dataset import RankingDataset
from .fine_tune import FineTuneConfig, fine_tune
from .kept_models import kept_model, model_mark

if TYPE_CHECKING:
    from ..devices import Device

# Seconds of training from which no run should have to do it again.
WORTH_KEEPING = 5.0


@dataclass(frozen=True)
class SourceData:
    """Measured programs of another device.

    Attributes:
        name: of the corpus; device: that it was measured on.
        data: its programs, with its own device's hardware row.
    """

    name: str
    device: Device
    data: RankingDataset


@dataclass(frozen=True)
class Lesson:
    """What a method may learn from.

    Attributes:
        base: the model to adapt.
        data: measured programs of the device, with its hardware row.
        base_view: (N, rows, width) features of the same programs as the model to beat sees them, with its own
            hardware row.
        device: the device; sources: other devices' programs.
        known: (K, rows, width) features of any program, each with the hardware row of a device that the base has
            learnt; None where it reads no device, or what it has learnt is not told.
        config: how a few labels are learnt.
        seed: of every random choice.
        folder: where training that takes long keeps its state; None keeps none.
        to_beat: the model that gains are over, as the guard counts them; None: the base.
        fresh: (N,) bool, programs that neither base nor the model to beat has learnt before: the others judge nothing,
            for these know them by heart. None: all.
    """

    base: CostModel
    data: RankingDataset
    base_view: np.ndarray
    device: Device
    sources: tuple[SourceData, ...] = ()
    config: FineTuneConfig = field(default_factory=FineTuneConfig)
    seed: int = 0
    folder: Path | None = None
    known: np.ndarray | None = None
    to_beat: CostModel | None = None
    fresh: np.ndarray | None = None

    @property
    def judging(self) -> RankingDataset:
        """The measured programs that may judge: those that are fresh."""
        return self.data if self.fresh is None else self.data.take(np.flatnonzero(self.fresh))


@dataclass(frozen=True)
class Learnt:
    """A model, and JSON-serialisable facts of how it came about."""

    model: CostModel
    facts: dict[str, Any]


class Method(Protocol):
    """One way of adapting. Deterministic for equal inputs on one machine.

    Attributes:
        name: as users write it.
        near: whether what is learnt lies a few small steps from the start, so that weights between them make sense.
    """

    name: ClassVar[str]
    near: ClassVar[bool]

    def missing(self, base: CostModel, sources: int) -> str | None:
        """What it lacks to adapt this base with so many corpora of other devices; None: nothing."""
        ...

    def start(self, lesson: Lesson) -> Learnt:
        """Where learning begins, of the base and the sources; labels may tell which of them to leave out."""
        ...

    def learn(self, start: CostModel, lesson: Lesson) -> Learnt:
        """Learn from the labels of the lesson; `start` is unchanged."""
        ...


def keeping(method: Method) -> Callable[[CostModel, Lesson], Learnt]:
    """Its `learn`, whose models are kept in the lesson's folder if they took long: another run finds them there."""

    def learn(start: CostModel, lesson: Lesson) -> Learnt:
        def train() -> tuple[CostModel, dict[str, Any]]:
            made = method.learn(start, lesson)
            return made.model, made.facts

        marks = learning_marks(method.name, start, lesson)
        return Learnt(*kept_model(lesson.folder, marks, train, WORTH_KEEPING))

    return learn


class FewShot:
    """Fine-tunes the base on the labels (TCL, section 4; `fine_tune`)."""

    name: ClassVar[str] = "few-shot"
    near: ClassVar[bool] = True

    def missing(self, base: CostModel, sources: int) -> str | None:
        """See `Method.missing`: any network will do."""
        return None

    def start(self, lesson: Lesson) -> Learnt:
        """The base."""
        return Learnt(lesson.base, {})

    def learn(self, start: CostModel, lesson: Lesson) -> Learnt:
        """See `fine_tune`."""
        result = fine_tune(start, lesson.data, replace(lesson.config, seed=lesson.seed))
        return Learnt(result.model, {"epochs": result.epochs, "validated": result.validated})


def learning_marks(name: str, start: CostModel, lesson: Lesson) -> tuple[str, ...]:
    """Words that tell one training from any other, for `kept_model`."""
    corpora = (f"{source.name}:{source.data.fingerprint()}" for source in lesson.sources)
    return (name, model_mark(start), lesson.data.fingerprint(), *corpora, repr(lesson.config), str(lesson.seed))
