"""`continual`: a column beside a frozen base learns the device (TCL, section 6)."""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ...models import CostModel, ProgressiveNetwork, list_architectures
from ...training.dataset import RankingDataset
from ..method import FewShot, SourceData, TrainedModel, TrainingSet, cached_model, model_digest
from .config import DistillConfig
from .device import add_device, learning_order, measure_change

# Every so many tasks of a source one chooses the epoch.
VALIDATION_EVERY = 10


class Continual(FewShot):
    """Learns corpora one after another into the base, the device most like the target last; then the target's labels.

    A corpus after which the base ranks the target's labels worse, beyond their uncertainty, is left out: the base of
    before goes on. These are the labels to learn from, and few labels show only much harm.

    Then the column learns the target's labels by `fine_tune`, which stops by itself and leaves the base alone. A few
    labels (`FineTuneConfig.low_rank_below`) move only matrices: those of the column, U and V. Nothing is distilled
    after that: the target is the last device, and its column is what ranks for it (section 7.4.3).
    """

    name: ClassVar[str] = "continual"
    learns_corpora: ClassVar[bool] = True

    def missing(self, base: CostModel, sources: int) -> str | None:
        """Return None for a network that has knowledge bases, or is one."""
        if isinstance(base, ProgressiveNetwork) or f"{base.arch}-kb" in list_architectures("knowledge base"):
            return None
        return f"no knowledge base is made of a {base.arch}"

    def start(self, training_set: TrainingSet) -> TrainedModel:
        """Return a knowledge base that knows the sources, its column ready to learn the target.

        Its facts: `sources`, those that it knows, in the order of learning; `left_out`, by name the `AccuracyChange` of
        each that made the base rank the labels worse.
        """
        base, learnt, left_out = _as_knowledge_base(training_set), [], {}
        by_name = {source.name: source for source in training_set.sources}
        for name in learning_order(training_set.device, {name: one.device for name, one in by_name.items()}):
            extended = _with_source(base.distilling(), by_name[name], training_set)
            change = measure_change(base, extended, training_set.judging, training_set.seed)
            if change is not None and change.fell:
                left_out[name] = asdict(change)
            else:
                base = extended
                learnt.append(name)
        if learnt:
            base.new_column("base", training_set.seed)
        return TrainedModel(base.learning().eval(), {"sources": learnt, "left_out": left_out})


def _as_knowledge_base(training_set: TrainingSet) -> ProgressiveNetwork:
    """The base as it is if its column knows a device already, else with a column that is its copy.

    The programs that a plain network learnt from are not at hand, so its Fisher diagonal is 0, and consolidation holds
    nothing back while the first source is distilled. Rehearsal of its own scores on the devices it learnt protects it
    there, where it reads devices. From the second source on, consolidation holds what those before it need.
    """
    model, seed = training_set.base, training_set.seed
    if not isinstance(model, ProgressiveNetwork):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            base = ProgressiveNetwork.around(model)
        for program in () if training_set.known_devices is None else training_set.known_devices:
            base.note_device(torch.from_numpy(program[None]))
        return base
    base = copy.deepcopy(model)
    if not base.config.as_dict()["column"]:
        base.new_column("base", seed)
    return base


def _with_source(base: ProgressiveNetwork, source: SourceData, training_set: TrainingSet) -> ProgressiveNetwork:
    """A base that knows a source too, learnt by the settings of `tchub distill`.

    It is kept even if the labels leave it out: more labels may decide otherwise.
    """
    programs, val = _split(source.data)
    config, seed = DistillConfig().phases(base.kb.arch, programs), training_set.seed

    def train(state: Path | None) -> TrainedModel:
        return TrainedModel(add_device(base, programs, val, config, seed=seed, folder=state).kb, {})

    key = ("source", model_digest(base), source.name, source.data.fingerprint(), repr(config), str(seed))
    extended = cached_model(training_set.folder, key, train).model
    assert isinstance(extended, ProgressiveNetwork)
    return extended


def _split(data: RankingDataset) -> tuple[RankingDataset, RankingDataset | None]:
    """Training and validation tasks; a source of few tasks keeps all of them for training."""
    held = data.group % VALIDATION_EVERY == VALIDATION_EVERY - 1
    if not held.any():
        return data, None
    return data.take(np.flatnonzero(~held)), data.take(np.flatnonzero(held))
