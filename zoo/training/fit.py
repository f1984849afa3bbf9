"""From a corpus to a checkpoint: the split, the training, the scores on networks never seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..models import Checkpoint, CheckpointConfig, create
from .config import TrainConfig
from .dataset import RankingDataset
from .loop import TrainResult, evaluate_model, train

if TYPE_CHECKING:
    from ..corpus import Corpus
    from ..devices import Device

METRICS_FORMAT = 1
PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Fitted:
    """A new checkpoint and how it came about.

    Attributes:
        checkpoint: not yet saved.
        result: of the training loop.
        metrics: what `metrics.json` holds: scores on the test split (the validation split of a corpus that
            has none of the held-out networks), and counts.
    """

    checkpoint: Checkpoint
    result: TrainResult
    metrics: dict[str, Any]


def corpus_device(corpus: Corpus) -> Device:
    """The device that a corpus was measured on: as found there if the corpus says, else by its name.

    Raises:
        UnknownDeviceError: neither its device nor its family is known here.
    """
    from ..devices import Device, UnknownDeviceError, get_device

    if "device_sheet" in corpus.meta:
        return Device.from_dict(corpus.meta["device_sheet"])
    try:
        return get_device(str(corpus.meta["device"]))
    except UnknownDeviceError:
        return get_device(str(corpus.meta["family"]))


def load_parts(
    corpus: Corpus, feature_schema: str, device: Device, parts: Iterable[str] = PARTS
) -> dict[str, RankingDataset]:
    """Features and latencies of parts of the split, leaving out parts without a task of enough programs.

    The split has a seed of its own, so that runs of all seeds are judged on the same tasks.
    """
    from ..corpus import EmptyDatasetError, split_tasks, to_dataset
    from ..features import get_schema

    schema = get_schema(feature_schema)
    split, loaded = split_tasks(corpus), {}
    for part in parts:
        try:
            loaded[part] = to_dataset(corpus, split.part(part), schema, device if schema.hardware else None)
        except EmptyDatasetError:
            if part == "train":
                raise
            # A corpus may lack held-out networks, or be too small for validation: the caller sees what is there.
    return loaded


def fit(
    corpus: Corpus,
    config: TrainConfig,
    *,
    name: str | None = None,
    version: str = "0.1.0",
    seed: int = 0,
    tasks_fraction: float = 1.0,
    programs_fraction: float = 1.0,
    lineage: dict[str, Any] | None = None,
    command: str | None = None,
    resume_dir: Path | None = None,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> Fitted:
    """Trains a recipe on a corpus.

    Args:
        corpus: its held-out networks are the test split and take no part in the training.
        config: the recipe.
        name: of the checkpoint, by default `arch-family`.
        version: of the checkpoint.
        seed: of the first weights, the batches, and the programs kept.
        tasks_fraction, programs_fraction: share of the training tasks, and of the programs of each, kept at
            random (0.1 programs is the papers' 10% random baseline).
        lineage: what is known of origin and licence, e.g. `weights_licence`, `authors`, `limits`.
        command: how to train the same again, for the card.
        resume_dir: where the state of the training is kept, and continued.
        on_epoch: told each entry of the history.

    Raises:
        TchubError: a subclass for each way this can fail.
    """
    device = corpus_device(corpus)
    parts = load_parts(corpus, config.feature_schema, device)
    data = parts["train"].sample(tasks_fraction, programs_fraction, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create(config.arch, **config.model)
    result = train(model, data, parts.get("val"), config, seed, resume_dir, on_epoch)
    facts = {
        "command": command,
        "recipe": config.as_dict(),
        "seed": seed,
        "seconds": round(sum(entry["seconds"] for entry in result.history), 1),
        "best_epoch": result.best_epoch,
        "tasks_fraction": tasks_fraction,
        "programs_fraction": programs_fraction,
        "corpus": describe_corpus(corpus) | {"tasks": len(set(data.group.tolist())), "programs": len(data)},
    }
    config_file = _checkpoint_config(corpus, config, device, model.config.as_dict(), facts)
    checkpoint = Checkpoint(
        CheckpointConfig(
            name=name or f"{config.arch}-{device.family}", version=version, lineage=lineage or {}, **config_file
        ),
        model,
        device,
    )
    return Fitted(checkpoint, result, _metrics(corpus, checkpoint, parts, seed))


def describe_corpus(corpus: Corpus) -> dict[str, Any]:
    """The facts of a corpus that a config and a card repeat."""
    from ..corpus import HELD_OUT

    keys = ("device", "cpu_model", "licence", "tvm_version")
    networks = {name for task in corpus.tasks.values() for name, _ in task.networks}
    return {
        "name": corpus.path.resolve().name,
        **{k: corpus.meta[k] for k in keys if k in corpus.meta},
        "how": corpus.meta.get("notes"),
        "networks": sorted(networks - set(HELD_OUT)),
        "held_out": sorted(networks & set(HELD_OUT)),
    }


def _checkpoint_config(
    corpus: Corpus, config: TrainConfig, device: Device, model: dict[str, Any], training: dict[str, Any]
) -> dict[str, Any]:
    from ..features import get_schema

    return {
        "arch": config.arch,
        "model": model,
        "feature_schema": config.feature_schema,
        "feature_version": get_schema(config.feature_schema).version,
        "family": device.family,
        # The device as it was: a later correction of its spec sheet must not change what the model reads.
        "device": device.to_dict(),
        "training": training,
        "tvm": str(corpus.meta.get("tvm_version", "")),
    }


def _metrics(corpus: Corpus, checkpoint: Checkpoint, parts: dict[str, RankingDataset], seed: int) -> dict[str, Any]:
    part = "test" if "test" in parts else "val" if "val" in parts else "train"
    return {
        "format": METRICS_FORMAT,
        "corpus": corpus.path.resolve().name,
        "split": part,
        "device": corpus.meta.get("device"),
        "seed": seed,
        "tasks": len(parts[part].task_ids),
        "programs": len(parts[part]),
        "results": {"model": evaluate_model(checkpoint.model, parts[part])},
        "validation": evaluate_model(checkpoint.model, parts["val"]) if "val" in parts else None,
    }
