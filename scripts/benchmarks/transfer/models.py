"""Trained models of the transfer benchmark: made once, kept as checkpoints, shared by the methods."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tchub.zoo.adapt.ensemble import recipe_for
from tchub.zoo.adapt.multi_task import MultiHead, multi_task
from tchub.zoo.models import Checkpoint, CheckpointConfig, CostModel, create, get_architecture
from tchub.zoo.training import RankingDataset, TrainConfig, train
from tchub.zoo.training.programs import resolve_schema

from scripts.benchmarks.transfer.data import Scene


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
