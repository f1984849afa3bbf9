"""A question to a method of the transfer benchmark: what is measured, and from which models it may start."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tchub.zoo.models import CostModel
from tchub.zoo.training import RankingDataset

from scripts.benchmarks.transfer.data import SHARE, Scene, draw
from scripts.benchmarks.transfer.models import Made, kept_model, train_new

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
