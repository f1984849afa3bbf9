"""`Method`, the interface of all ways of adapting; few-shot fine-tuning and ensembles; and the cache of trainings.

A method has a start, which knows none of the device's labels, and learns from them. A further method is a class with
`Method`'s members, added to `adapt_model.METHODS`.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..files import write_files
from ..models import ContextModel, CostModel, Ensemble, create, get_architecture
from ..training.config import TrainConfig
from ..training.dataset import RankingDataset, steps_per_epoch
from ..training.loop import train
from .fine_tune import FineTuneConfig, fine_tune

if TYPE_CHECKING:
    from ..devices import Device

# Raise when what a cached file holds changes its meaning.
FORMAT = 2
# Seconds from which a fine-tuning is worth a file.
LEAST_SECONDS = 5.0
# Labels of a task from which on the network from random weights counts `MOST` of what the base counts.
ENOUGH, MOST = 16, 0.5
# Steps of a training from random weights at the least: a few labels are one batch an epoch.
LEAST_STEPS = 300
# Scores that differ by less than this part of them are one score in float32.
_NOTHING = 1e-6


@dataclass(frozen=True)
class SourceData:
    """Measured programs of another device: name of the corpus, device, programs with its hardware row."""

    name: str
    device: Device
    data: RankingDataset


@dataclass(frozen=True)
class TrainingSet:
    """All that a method may learn from.

    Attributes:
        data: measured programs of the device, with its hardware row.
        incumbent_features: of the same programs as the incumbent reads them, with its own hardware row.
        device: the device; sources: other devices' programs.
        config: how a few labels are learnt; seed: of every random choice.
        folder: where training that takes long keeps its state; None keeps none.
        known_devices: (K, rows, width) features of any program, each with the hardware row of a device that the base
            has learnt; None where it reads no device, or those devices are unknown.
        incumbent: the model that gains are over; None: the base. incumbent_trusted: `trusted` of `informed_scores`.
        unseen: (N,) bool, programs that neither base nor incumbent has learnt before: only these judge. None: all.
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
    incumbent_trusted: np.ndarray | None = None
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


class Method(ABC):
    """One way of adapting. Deterministic for equal inputs on one machine.

    Attributes:
        near: True if the result lies a few small steps from the start, so that weights between them make sense.
        learns_corpora: True if it learns programs of other devices too.
    """

    name: ClassVar[str]
    near: ClassVar[bool] = False
    learns_corpora: ClassVar[bool] = False

    def missing(self, base: CostModel, sources: int) -> str | None:
        """Return what it lacks to adapt this base with so many corpora of other devices, None for nothing."""
        return None

    def start(self, training_set: TrainingSet) -> TrainedModel:
        """Return the model that learning begins with; labels may only decide which sources to leave out."""
        return TrainedModel(training_set.base, {})

    @abstractmethod
    def learn(self, start: CostModel, training_set: TrainingSet) -> TrainedModel:
        """Learn from the labels, or take the result of an earlier run from the folder; `start` is unchanged."""


class FewShot(Method):
    """Fine-tunes the base on the labels (TCL, section 4; `fine_tune`)."""

    name: ClassVar[str] = "few-shot"
    near: ClassVar[bool] = True

    def learn(self, start: CostModel, training_set: TrainingSet) -> TrainedModel:
        """Learn by `fine_tune`, which leaves alone what is frozen."""

        def tune(_state: Path | None) -> TrainedModel:
            result = fine_tune(start, training_set.data, replace(training_set.config, seed=training_set.seed))
            return TrainedModel(result.model, {"epochs": result.epochs, "validated": result.validated})

        return cached_model(training_set.folder, training_set.key(self.name, start), tune, LEAST_SECONDS)


class EnsembleMethod(Method):
    """Adds a network of the labels alone: it corrects a base that misleads, and errs in other places than the base.

    The base is fine-tuned as `few-shot` does it, and a second network of its kind learns the labels from random
    weights. The more labels of a task there are, the more the second one counts (`fresh_share`).
    """

    name: ClassVar[str] = "ensemble"

    def missing(self, base: CostModel, sources: int) -> str | None:
        """Return None for a plain network, of which there can be a second one."""
        known = get_architecture(base.arch)
        return f"it combines plain networks, and this one is of the kind {known.kind}" if known.base else None

    def learn(self, start: CostModel, training_set: TrainingSet) -> TrainedModel:
        """Return an `Ensemble` of the fine-tuned start and of a network from random weights."""
        data, seed = training_set.data, training_set.seed
        tuned, key = FewShot().learn(start, training_set), training_set.key(self.name, start)  # `auto` has it already
        fresh = cached_model(training_set.folder, key, lambda _: TrainedModel(train_fresh(start, data, seed), {}))
        second, share = fresh.model, fresh_share(data)
        shares = ((1 - share) * score_unit(tuned.model, data), share * score_unit(second, data))
        facts = tuned.facts | {"fresh_share": round(share, 4)}
        return TrainedModel(Ensemble.around([tuned.model, second], shares), facts)


def train_fresh(like: CostModel, data: RankingDataset, seed: int = 0) -> CostModel:
    """Train a network of the architecture and size of `like` on these programs alone, from random weights."""
    model = create(like.arch, seed=seed, **like.config.as_dict())
    model.prepare(torch.from_numpy(data.features))
    train(model, data, None, recipe_for(like.arch, data), seed)
    return model.eval()


def recipe_for(arch: str, data: RankingDataset) -> TrainConfig:
    """Return the architecture's recipe, with more epochs where there is little data.

    The last epoch is kept: to choose one takes labels that a small budget does not have.
    """
    recipe = replace(TrainConfig.find(arch), select="last", finetune={})
    least = math.ceil(LEAST_STEPS / steps_per_epoch(data, recipe.programs_per_group, recipe.groups_per_batch))
    return replace(recipe, epochs=max(recipe.epochs, least))


def fresh_share(data: RankingDataset) -> float:
    """Return the share of the network from random weights, 0 to 1, by the mean number of labels of a task."""
    sizes = [len(members) for members in data.members if len(members)]
    weight = MOST * min(1.0, float(np.mean(sizes)) / ENOUGH)
    return weight / (1 + weight)


def score_unit(model: CostModel, data: RankingDataset) -> float:
    """Return the factor that scales a model's scores to the spread of -log(latency) within a task; 0 without a spread.

    1 for a model that takes context: its scores are estimates of it. The losses of others know orders and no units, so
    that one member would outvote another by being louder.
    """
    if isinstance(model, ContextModel):
        return 1.0
    scores, speed = model.score(data.features), -np.log(data.latency)
    spread = _spread(scores, data)
    return _spread(speed, data) / spread if spread > _NOTHING * np.abs(scores).max() else 0.0


def _spread(values: np.ndarray, data: RankingDataset) -> float:
    """Return the standard deviation within tasks."""
    apart = [values[members] - values[members].mean() for members in data.members if len(members)]
    return float(np.concatenate(apart).std())


def model_digest(model: CostModel) -> str:
    """Return sha256 hex, 16 digits, of a model's architecture, sizes and weights."""
    digest = hashlib.sha256(repr((model.arch, sorted(model.config.as_dict().items()))).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def cached_model(
    folder: Path | None, key: Iterable[str], train: Callable[[Path | None], TrainedModel], least_seconds: float = 0.0
) -> TrainedModel:
    """Return the model of `train`, or that of an earlier run with the same key; the only way in which methods resume.

    `train` is given the folder for its epochs, which the model replaces, or None. What took fewer than `least_seconds`
    is not kept.
    """
    if folder is None:
        return train(None)
    state = folder / hashlib.sha256(repr((FORMAT, *key)).encode()).hexdigest()[:24]
    path = state.with_suffix(".safetensors")
    result = _read(path)
    if result is None:
        began = time.perf_counter()
        result = train(state)
        if time.perf_counter() - began >= least_seconds:
            model = result.model
            header = {"arch": model.arch, "config": model.config.as_dict(), "facts": result.facts}
            tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
            write_files(folder, {path.name: save(tensors, metadata={"model": json.dumps(header)})})
            shutil.rmtree(state, ignore_errors=True)
    return result


def _read(path: Path) -> TrainedModel | None:
    """Read a cached model; None where there is no whole file: the model is then trained anew."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["model"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        model = create(header["arch"], seed=0, **header["config"])
        model.load_state_dict(tensors)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError):
        return None
    return TrainedModel(model.eval(), header["facts"])
