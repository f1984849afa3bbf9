"""`Method`, the interface of all ways of adapting, and the simplest of them, few-shot fine-tuning.

A method has a start, which knows none of the device's labels, and learns from them. A further method is a class with
`Method`'s members, added to `adapt_model.METHODS`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ..models import CostModel
from ..training.dataset import RankingDataset
from .fine_tune import FineTuneConfig, fine_tune
from .training_cache import LEAST_SECONDS, cached_model, model_digest

if TYPE_CHECKING:
    from ..devices import Device


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
class TrainingSet:
    """All that a method may learn from.

    Attributes:
        base: the model to adapt.
        data: measured programs of the device, with its hardware row.
        incumbent_features: (N, rows, width) features of the same programs as the incumbent reads them, with its own
            hardware row.
        device: the device; sources: other devices' programs.
        config: how a few labels are learnt.
        seed: of every random choice.
        folder: where training that takes long keeps its state; None keeps none.
        known_devices: (K, rows, width) features of any program, each with the hardware row of a device that the base
            has learnt; None where it reads no device, or those devices are unknown.
        incumbent: the model that gains are over, as the guard counts them; None: the base.
        unseen: (N,) bool, programs that neither base nor incumbent has learnt before: only these judge, since they
            have memorised the others. None: all.
    """

    base: CostModel
    data: RankingDataset
    incumbent_features: np.ndarray
    device: Device
    sources: tuple[SourceData, ...] = ()
    config: FineTuneConfig = field(default_factory=FineTuneConfig)
    seed: int = 0
    folder: Path | None = None
    known_devices: np.ndarray | None = None
    incumbent: CostModel | None = None
    unseen: np.ndarray | None = None

    @property
    def judging(self) -> RankingDataset:
        """The measured programs that may judge: the unseen ones."""
        return self.data if self.unseen is None else self.data.take(np.flatnonzero(self.unseen))

    def key(self, method: str, start: CostModel) -> tuple[str, ...]:
        """Return what identifies one training, for `cached_model`."""
        corpora = (f"{source.name}:{source.data.fingerprint()}" for source in self.sources)
        return (method, model_digest(start), self.data.fingerprint(), *corpora, repr(self.config), str(self.seed))


@dataclass(frozen=True)
class TrainedModel:
    """A model, and JSON-serialisable facts of its training."""

    model: CostModel
    facts: dict[str, Any]


class Method(Protocol):
    """One way of adapting. Deterministic for equal inputs on one machine.

    Attributes:
        name: as users write it.
        near: True if the result lies a few small steps from the start, so that weights between them make sense.
        learns_corpora: True if it learns programs of other devices too.
    """

    name: ClassVar[str]
    near: ClassVar[bool]
    learns_corpora: ClassVar[bool]

    def missing(self, base: CostModel, sources: int) -> str | None:
        """Return what it lacks to adapt this base with so many corpora of other devices, None for nothing."""
        ...

    def start(self, training_set: TrainingSet) -> TrainedModel:
        """Return the model that learning begins with; labels may only tell which sources to leave out."""
        ...

    def learn(self, start: CostModel, training_set: TrainingSet) -> TrainedModel:
        """Learn from the labels, or take the result of an earlier run from the folder; `start` is unchanged."""
        ...


class FewShot:
    """Fine-tunes the base on the labels (TCL, section 4; `fine_tune`)."""

    name: ClassVar[str] = "few-shot"
    near: ClassVar[bool] = True
    learns_corpora: ClassVar[bool] = False

    def missing(self, base: CostModel, sources: int) -> str | None:
        """Return None: any network will do."""
        return None

    def start(self, training_set: TrainingSet) -> TrainedModel:
        """Return the base."""
        return TrainedModel(training_set.base, {})

    def learn(self, start: CostModel, training_set: TrainingSet) -> TrainedModel:
        """Learn by `fine_tune`, which leaves alone what is frozen."""

        def train(_state: Path | None) -> tuple[CostModel, dict[str, Any]]:
            result = fine_tune(start, training_set.data, replace(training_set.config, seed=training_set.seed))
            return result.model, {"epochs": result.epochs, "validated": result.validated}

        key = training_set.key(self.name, start)
        return TrainedModel(*cached_model(training_set.folder, key, train, LEAST_SECONDS))
