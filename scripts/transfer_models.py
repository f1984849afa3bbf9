"""Trained models of the transfer benchmark: made once, kept as checkpoints, shared by the methods."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tchub.zoo.models import Checkpoint, CheckpointConfig, CostModel, create
from tchub.zoo.training import RankingDataset, TrainConfig, train
from transfer_data import Scene

# Steps of a training at the least: a few labels are one batch an epoch, and so many epochs are no training.
LEAST_STEPS = 300


@dataclass(frozen=True)
class Made:
    """A model and what it took to make it."""

    model: CostModel
    seconds: float


def recipe(arch: str, data: RankingDataset) -> TrainConfig:
    """The architecture's recipe, in more epochs where there is little data.

    The last epoch is kept: to choose one takes labels that the budget does not have.
    """
    found = replace(TrainConfig.find(arch), select="last", finetune={})
    least = math.ceil(LEAST_STEPS / steps_of(data, found.programs_per_group, found.groups_per_batch))
    return replace(found, epochs=max(found.epochs, least), evaluate_every=10**6)


def steps_of(data: RankingDataset, programs: int, groups: int) -> int:
    """Batches of an epoch of so many groups a batch, and programs a group."""
    cut = sum(math.ceil(len(members) / programs) for members in data.members if len(members) >= 2)
    return max(1, math.ceil(cut / groups))


def train_new(scene: Scene, data: RankingDataset, seed: int, arch: str = "tilenet") -> Made:
    """A model of random weights, trained on some programs."""
    started, found = time.process_time(), recipe(arch, data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create(arch, **{"width": scene.schema.width, "hardware": scene.schema.hardware} | found.model)
    model.prepare(torch.from_numpy(data.features))
    train(model, data, None, found, seed)
    return Made(model.eval(), time.process_time() - started)


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
