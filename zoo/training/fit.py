"""From corpora to a checkpoint: the split, the training, the scores on tasks never seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..machine import machine
from ..models import Checkpoint, CheckpointConfig, create, get_architecture
from .config import TrainConfig
from .dataset import RankingDataset
from .distributed import ALONE, World
from .errors import TrainingError
from .evaluation import evaluate_model
from .loop import TrainResult, train
from .programs import Share, StatementStore, resolve_schema
from .state import PRETRAIN_FOLDER
from .training_data import TrainingData, load_part, load_training_data

if TYPE_CHECKING:
    from ..corpus import Corpus
    from ..devices import Device
    from ..models import CostModel

METRICS_FORMAT = 1
PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class FitResult:
    """A new checkpoint and how it came about.

    Attributes:
        checkpoint: not yet saved.
        result: of the training loop (of its last stage).
        metrics: what `metrics.json` holds: scores on the target's test split (its validation split where it
            has no test task), counts, seconds.
    """

    checkpoint: Checkpoint
    result: TrainResult
    metrics: dict[str, Any]


def fit(
    corpus: Corpus,
    config: TrainConfig,
    *,
    sources: Sequence[Corpus] = (),
    init: Checkpoint | None = None,
    name: str | None = None,
    version: str = "0.1.0",
    seed: int = 0,
    tasks_fraction: float = 1.0,
    programs_fraction: float = 1.0,
    programs_per_task: int = 0,
    lineage: dict[str, Any] | None = None,
    command: str | None = None,
    resume_dir: Path | None = None,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
    torch_device: str = "cpu",
    world: World = ALONE,
    store: StatementStore | None = None,
    data: TrainingData | None = None,
) -> FitResult:
    """Trains a recipe on one corpus, or on several.

    With sources, a recipe that has a `[finetune]` table trains on them first and goes on with the target's
    programs alone; without that table it learns from all at once.

    Args:
        corpus: the target; its test tasks judge, and no corpus's programs of them take part in the training.
        config: the recipe.
        sources: further corpora to learn from.
        init: whose weights are the start; without sources the recipe's `[finetune]` settings then hold.
        name: of the checkpoint, by default `arch-family`.
        version: of the checkpoint.
        seed: of the first weights, the batches, and the programs kept.
        tasks_fraction, programs_fraction, programs_per_task: see `Share` (0.1 programs is the papers' 10%
            random baseline).
        lineage: what is known of origin and licence, e.g. `weights_licence`, `authors`, `limits`.
        command: how to train the same again, for the card.
        resume_dir: where the state of the training is kept, and continued.
        on_epoch: told each entry of the history.
        torch_device: where to train, e.g. "cuda"; the checkpoint comes back on the CPU.
        world: the processes that train together.
        store: where features of statements are kept.
        data: of these corpora by `load_training_data`, to spare reading them for every recipe and seed.

    Raises:
        TrainingError: `init` is of another architecture or reads other features.
        TchubError: a subclass for each other way this can fail.
    """
    share = Share(tasks_fraction, programs_fraction, programs_per_task, seed)
    data = data or load_training_data(corpus, sources, config.feature_schema, share, store)
    model = _start(config, data, init, seed).to(torch_device)
    stages = _stages(config, data, init is not None)
    results = []
    for number, (settings, programs) in enumerate(stages):
        folder = resume_dir if number + 1 == len(stages) else resume_dir and resume_dir / PRETRAIN_FOLDER
        results.append(train(model, programs, data.val, settings, seed, folder, on_epoch, world))
    result = results[-1]
    model.to("cpu")
    training = {
        "command": command,
        "recipe": config.as_dict(),
        "parameters": model.parameter_count(),
        "seed": seed,
        "seconds": round(sum(entry["seconds"] for each in results for entry in each.history), 1),
        "machine": machine(torch_device),
        "best_epoch": result.best_epoch,
        "stages": len(stages),
        "init": init and f"{init.config.name}@{init.config.version}",
        "tasks_fraction": tasks_fraction,
        "programs_fraction": programs_fraction,
        "programs_per_task": programs_per_task,
        "corpus": data.corpora[0],
        "sources": data.corpora[1:],
    }
    checkpoint = _checkpoint(corpus, data, model, training, name, version, lineage or {})
    return FitResult(checkpoint, result, _metrics(checkpoint, data, world))


def load_parts(
    corpus: Corpus,
    feature_schema: str,
    device: Device,
    parts: Iterable[str] = PARTS,
    store: StatementStore | None = None,
) -> dict[str, RankingDataset]:
    """Features and latencies of parts of the split, leaving out parts without a task of enough programs."""
    schema = resolve_schema(feature_schema, device.kind)
    loaded = {part: load_part(corpus, part, schema, device, store) for part in parts}
    return {part: data for part, data in loaded.items() if data is not None}


def _start(config: TrainConfig, data: TrainingData, init: Checkpoint | None, seed: int) -> CostModel:
    """The model before its first epoch: of random weights, or with another checkpoint's."""
    if init is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = create(config.arch, **_fitting_settings(config, data))
        model.prepare(torch.from_numpy(data.train.features))
        return model
    reads = (init.config.arch, init.config.feature_schema, init.config.feature_version)
    wanted = (config.arch, data.schema.name, data.schema.version)
    if reads != wanted:
        raise TrainingError(
            f"{init.config.name} is {reads[0]} on {reads[1]} (version {reads[2]}); the recipe makes "
            f"{wanted[0]} on {wanted[1]} (version {wanted[2]})",
            remedy="choose the recipe of the checkpoint's architecture, and a corpus of its kind of device",
            checkpoint=init.config.name,
        )
    model = create(init.config.arch, **init.config.model)
    model.load_state_dict(init.model.state_dict())
    model.admit(torch.from_numpy(data.train.features))
    return model


def _fitting_settings(config: TrainConfig, data: TrainingData) -> dict[str, Any]:
    """Return the recipe's model settings, and those that follow from the data: columns, hardware row, heads."""
    known = get_architecture(config.arch).config
    follows: dict[str, Any] = {"width": data.schema.width, "hardware": data.schema.hardware}
    if getattr(known, "heads", 1) > 1:
        follows["heads"] = len(data.corpora)
    return follows | config.model


def _stages(config: TrainConfig, data: TrainingData, started: bool) -> list[tuple[TrainConfig, RankingDataset]]:
    if started and data.sources is None:
        return [(config.finetuning(), data.train)]
    if config.finetune and data.own is not None and data.sources is not None:
        return [(config.pretraining(), data.sources), (config.finetuning(), data.own)]
    return [(config.pretraining(), data.train)]


def _checkpoint(
    corpus: Corpus,
    data: TrainingData,
    model: CostModel,
    training: dict[str, Any],
    name: str | None,
    version: str,
    lineage: dict[str, Any],
) -> Checkpoint:
    config = CheckpointConfig(
        name=name or f"{model.arch}-{data.device.family}",
        version=version,
        lineage=lineage,
        arch=model.arch,
        model=model.config.as_dict(),
        feature_schema=data.schema.name,
        feature_version=data.schema.version,
        family=data.device.family,
        # The device as it was: a later correction of its spec sheet must not change what the model reads.
        device=data.device.to_dict(),
        training=training,
        tvm=str(corpus.meta.get("tvm_version", "")),
    )
    return Checkpoint(config, model, data.device)


def _metrics(checkpoint: Checkpoint, data: TrainingData, world: World) -> dict[str, Any]:
    training = checkpoint.config.training
    part, judge = next(
        (n, d) for n, d in (("test", data.test), ("val", data.val), ("train", data.train)) if d is not None
    )
    return {
        "format": METRICS_FORMAT,
        "corpus": data.corpora[0]["name"],
        "split": part,
        "device": data.corpora[0].get("device"),
        "seed": training["seed"],
        "seconds": training["seconds"],
        "tasks": len(judge.task_ids),
        "programs": len(judge),
        "trained_on": [{k: c.get(k) for k in _COUNTS} for c in data.corpora],
        "results": {"model": evaluate_model(checkpoint.model, judge, world)},
        "validation": evaluate_model(checkpoint.model, data.val, world) if data.val is not None else None,
    }


_COUNTS = ("name", "device", "licence", "tasks", "programs", "programs_without_features")
