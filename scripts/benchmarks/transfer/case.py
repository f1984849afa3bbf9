"""A question to a method of the transfer benchmark: what is measured, and from which models it may start."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from tchub.zoo.adapt.fine_tune import in_head
from tchub.zoo.adapt.method import recipe_for
from tchub.zoo.adapt.multi_task import MultiHead
from tchub.zoo.models import Checkpoint, CheckpointConfig, CostModel, create
from tchub.zoo.models.trees import grow_task_trees
from tchub.zoo.training import RankingDataset, train
from tchub.zoo.training.evaluation import draw_labels, scores_given

from scripts.benchmarks.common import write_text
from scripts.benchmarks.transfer.data import SHARE, Scene, draw

CROSS, IN_TASK, BOTH = PROTOCOLS = ("cross-task", "in-task", "both")


@dataclass(frozen=True)
class Answer:
    """What a method came to: (N,) scores of the judging tasks' programs.

    Attributes:
        known: (N,) bool, the programs that it had measured where it chose them itself; None: the case's.
    """

    scores: np.ndarray
    known: np.ndarray | None = None


@dataclass(frozen=True)
class Case:
    """One question to a method.

    Attributes:
        protocol: one of `PROTOCOLS`; labels: programs of each judging task that are measured.
        seed: draws the programs that are measured, first weights and batches.
        models: where trained models are kept; arch: of them all.
        order: of the sources, some of them or all; empty: all, as in the scene.
        drawn: indices of the programs of the training tasks that are measured; None: a tenth at random.
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
            raise ValueError(f"{self.scene.path} has no judging task")
        return self.scene.judged

    @cached_property
    def known(self) -> np.ndarray:
        """(N,) bool: programs of the judging tasks that are measured."""
        if self.chosen is not None:
            return self.chosen
        if not self.labels:
            return np.zeros(len(self.judged), dtype=bool)
        return draw_labels(self.judged, self.labels, self.seed)

    @cached_property
    def measured(self) -> RankingDataset:
        """All programs of the target that are measured: of its training tasks, of the judging tasks, or of both."""
        own = self.scene.own
        tenth = own.take(draw(own, SHARE, self.seed) if self.drawn is None else self.drawn)
        labels = self.judged.take(np.flatnonzero(self.known))
        return RankingDataset.concat({CROSS: [tenth], IN_TASK: [labels], BOTH: [tenth, labels]}[self.protocol])

    @property
    def folder(self) -> Path:
        """Where the models of the scene are kept."""
        return self.models / self.scene.path

    def base(self, seed: int | None = None) -> CostModel:
        """The model that was trained on the sources, all at once, by the case's seed or another."""
        seed = self.seed if seed is None else seed
        return self.kept(f"{self.arch}-{seed}", lambda: self.train(self.scene.all_given, seed))

    def informed(self) -> CostModel:
        """The model that was trained on the sources and on all programs of the target's training tasks at once."""
        data = [self.scene.own, self.scene.all_given]
        return self.kept(f"{self.arch}-informed-{self.seed}", lambda: self.train(RankingDataset.concat(data)))

    def given(self, source: str) -> RankingDataset:
        """The programs of a source."""
        return self.scene.given[self.scene.sources.index(source)]

    def alone(self, source: str) -> CostModel:
        """The model that was trained on one source alone."""
        return self.kept(f"bases/alone-{source}-{self.seed}", lambda: self.train(self.given(source)))

    def kept(self, name: str, make: Callable[[], CostModel]) -> CostModel:
        """A model of the scene, made only when it is not there yet."""
        return kept_model(self.folder / name, self.scene, make)

    def train(self, data: RankingDataset, seed: int | None = None) -> CostModel:
        """A new model of the case's architecture and its seed, or another."""
        return train_new(self.scene, data, self.seed if seed is None else seed, self.arch)

    def scores(self, model: CostModel) -> np.ndarray:
        """(N,) scores of the judging tasks' programs by a model that takes the labels as context.

        Those of the measured programs are NaN; without labels, the model's own scores.
        """
        return scores_given(model, self.judged, self.known) if self.labels else model.score(self.judged.features)

    def answer(self, *models: CostModel) -> Answer:
        """The mean of what models say."""
        return Answer(np.mean([self.scores(model) for model in models], axis=0), self.chosen)


def train_new(scene: Scene, data: RankingDataset, seed: int, arch: str = "tilenet") -> CostModel:
    """A model of random weights, trained on some programs by the recipe."""
    recipe = recipe_for(arch, data)
    model = create(arch, seed=seed, **scene.sizes | recipe.model)
    model.prepare(torch.from_numpy(data.features))
    train(model, data, None, recipe, seed)
    return model.eval()


def train_heads(case: Case) -> CostModel:
    """Train one trunk from random weights for all devices, a head each; return the network of the target's head."""
    devices = [case.measured, *case.scene.given]
    parts = [replace(part, task_heads=np.full(len(part.task_ids), i)) for i, part in enumerate(devices)]
    data = RankingDataset.concat(parts)
    recipe = recipe_for(case.arch, data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        heads = MultiHead(create(case.arch, **case.scene.sizes | recipe.model), len(devices))
        for network in heads.networks[1:]:
            for name, module in network.named_modules():
                if in_head(name) and hasattr(module, "reset_parameters"):
                    module.reset_parameters()
    heads.network(0).prepare(torch.from_numpy(data.features))
    train(heads, data, None, recipe, case.seed)
    return heads.network(0).eval()


def task_tree_scores(data: RankingDataset, known: np.ndarray) -> np.ndarray:
    """(N,) scores by boosted trees of each task's measured programs, (N,) bool `known`; NaN for these."""
    scores = np.full(len(data), np.nan)
    for members in data.members:
        have, rest = members[known[members]], members[~known[members]]
        speed = -np.log(data.latency[have])
        trees = grow_task_trees(np.ascontiguousarray(data.features[have, 0]), speed - speed.mean())
        scores[rest] = trees.inplace_predict(data.features[rest, 0])
    return scores


def kept_model(folder: Path, scene: Scene, make: Callable[[], CostModel]) -> CostModel:
    """A model of a folder, made only when it is not there yet; a folder without `made.json` is not finished."""
    if not (folder / "made.json").is_file():
        model, schema = make(), scene.schema
        config = CheckpointConfig(
            folder.name, "1.0.0", model.arch, model.config.as_dict(), schema.name, scene.device.family,
            feature_version=schema.version, device=scene.device.to_dict(),
        )  # fmt: skip
        Checkpoint(config, model, scene.device).save(folder)
        write_text(folder / "made.json", "{}")
    return Checkpoint.load(folder).model
