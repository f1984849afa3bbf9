"""A question to a method of the transfer benchmark: what is measured, and from which models it may start."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tchub.zoo.adapt.ensemble import recipe_for
from tchub.zoo.adapt.multi_task import MultiHead, multi_task
from tchub.zoo.models import Checkpoint, CheckpointConfig, CostModel, create, get_architecture
from tchub.zoo.training import RankingDataset, TrainConfig, train
from tchub.zoo.training.programs import resolve_schema

from scripts.benchmarks.transfer.data import SHARE, Scene, draw

CROSS, IN_TASK, BOTH = PROTOCOLS = ("cross-task", "in-task", "both")


@dataclass(frozen=True)
class Case:
    """One question to a method.

    Attributes:
        scene: target, sources and judging tasks.
        protocol: one of `PROTOCOLS`; labels: programs of each judging task that are measured.
        seed: draws the programs that are measured, first weights and batches.
        models: where trained models are kept.
        arch: of all models.
        order: of the sources, some of them or all; empty: all, as in the scene.
        drawn: places of the programs of the training tasks that are measured; None: a tenth at random.
        chosen: (N,) bool, programs of the judging tasks that are measured; None: `labels` of each at random.
    """

    scene: Scene
    protocol: str
    labels: int
    seed: int
    models: Path
    arch: str = "tilenet"
    drawn: np.ndarray | None = None
    chosen: np.ndarray | None = None
    order: tuple[str, ...] = ()

    @property
    def taught(self) -> tuple[str, ...]:
        """The sources in the order in which a continual learner meets them."""
        return self.order or self.scene.sources

    @property
    def judged(self) -> RankingDataset:
        """All programs of the judging tasks."""
        if self.scene.judged is None:
            raise ValueError(f"{self.scene.place} has no judging task")
        return self.scene.judged

    @cached_property
    def known(self) -> np.ndarray:
        """(N,) bool: programs of the judging tasks that are measured."""
        from tchub.zoo.training.evaluation import draw_labels

        if self.chosen is not None:
            return self.chosen
        if not self.labels:
            return np.zeros(len(self.judged), dtype=bool)
        return draw_labels(self.judged, self.labels, self.seed)

    @cached_property
    def tenth(self) -> RankingDataset:
        """The measured programs of the target's training tasks."""
        places = draw(self.scene.own, SHARE, self.seed) if self.drawn is None else self.drawn
        return self.scene.own.take(places)

    @cached_property
    def own_labels(self) -> RankingDataset:
        """The measured programs of the judging tasks."""
        return self.judged.take(np.flatnonzero(self.known))

    @cached_property
    def measured(self) -> RankingDataset:
        """All programs of the target that are measured."""
        parts = {CROSS: [self.tenth], IN_TASK: [self.own_labels], BOTH: [self.tenth, self.own_labels]}
        return RankingDataset.concat(parts[self.protocol])

    def base(self, seed: int | None = None) -> Made:
        """The model that was trained on the sources, all at once, by the case's seed or another."""
        seed = self.seed if seed is None else seed
        folder = self.models / self.scene.place / f"{self.arch}-{seed}"
        return kept_model(folder, self.scene, lambda: train_new(self.scene, self.scene.all_given, seed, self.arch))

    def informed(self) -> Made:
        """The model that was trained on the sources and on all programs of the target's training tasks at once."""
        folder = self.models / self.scene.place / f"{self.arch}-informed-{self.seed}"
        return kept_model(
            folder, self.scene, lambda: self.train(RankingDataset.concat([self.scene.own, self.scene.all_given]))
        )

    @property
    def bases(self) -> Path:
        """Where knowledge bases are kept, and models of single sources."""
        return self.models / self.scene.place / "bases"

    def given(self, source: str) -> RankingDataset:
        """The programs of a source."""
        return self.scene.given[self.scene.sources.index(source)]

    def alone(self, source: str) -> CostModel:
        """The model that was trained on one source alone."""
        folder = self.bases / f"alone-{source}-{self.seed}"
        return kept_model(folder, self.scene, lambda: self.train(self.given(source))).model

    def train(self, data: RankingDataset) -> Made:
        """A new model of the case's architecture and seed."""
        return train_new(self.scene, data, self.seed, self.arch)

    def told(self, model: CostModel) -> np.ndarray:
        """(N,) scores of the judging tasks' programs by a model that takes the labels as context.

        Those of the measured programs are NaN; without labels, the model's own scores.
        """
        from tchub.zoo.training.evaluation import scores_given

        return scores_given(model, self.judged, self.known) if self.labels else model.score(self.judged.features)


@dataclass(frozen=True)
class Made:
    """A model and what it took to make it."""

    model: CostModel
    seconds: float


def train_new(
    scene: Scene, data: RankingDataset, seed: int, arch: str = "tilenet", changed: Mapping[str, Any] | None = None
) -> Made:
    """A model of random weights, trained on some programs by the recipe, of which some settings may be changed."""
    started, found = time.process_time(), recipe_for(arch, data)
    if changed:
        model = found.model | {name: value for name, value in changed.items() if name in found.model}
        found = replace(found, model=model, **{name: changed[name] for name in changed if name not in model})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create(arch, **{"width": scene.schema.width, "hardware": scene.schema.hardware} | found.model)
    model.prepare(torch.from_numpy(data.features))
    train(model, data, None, found, seed)
    return Made(model.eval(), time.process_time() - started)


def train_heads(
    arch: str, target: RankingDataset, sources: Sequence[RankingDataset], config: TrainConfig, seed: int
) -> CostModel:
    """Train one trunk from random weights for all devices, a head each; return the network of the target's head."""
    data = RankingDataset.concat([target, *sources])
    width = data.features.shape[2]
    schemas = [resolve_schema(config.feature_schema, kind) for kind in ("cpu", "gpu")]
    hardware = next((s.hardware for s in schemas if s.width == width), get_architecture(arch).config().hardware)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create(arch, **{"width": width, "hardware": hardware} | config.model)
        heads = MultiHead(model, 1 + len(sources), fresh=True)
    heads.prepare(torch.from_numpy(data.features))
    return multi_task(heads, target, sources, config, seed)[0]


def kept_model(folder: Path, scene: Scene, make: Callable[[], Made]) -> Made:
    """A model of a folder, made only when it is not there yet; a folder without `made.json` is not finished."""
    done = folder / "made.json"
    if not done.is_file():
        made = make()
        Checkpoint(_config(scene, made.model, folder.name), made.model, scene.device).save(folder)
        part = folder / "made.part"
        part.write_text(json.dumps({"seconds": made.seconds}))
        os.replace(part, done)
    return Made(Checkpoint.load(folder).model, json.loads(done.read_text())["seconds"])


def _config(scene: Scene, model: CostModel, name: str) -> CheckpointConfig:
    return CheckpointConfig(
        name=name,
        version="1.0.0",
        arch=model.arch,
        model=model.config.as_dict(),
        feature_schema=scene.schema.name,
        feature_version=scene.schema.version,
        family=scene.device.family,
        device=scene.device.to_dict(),
    )
