"""From programs of corpora to a checkpoint: the training, and the scores on tasks never seen."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from ..corpus import Corpus
from ..files import write_files
from ..machine import machine
from ..models import Checkpoint, CheckpointConfig, CostModel, XGBoostRanker, create, get_architecture
from ..plain_json import json_file
from ..trust import class_trust
from .config import TrainConfig
from .dataset import RankingDataset
from .distributed import ALONE, World
from .errors import TrainingError
from .evaluation import evaluate_model, head_scores, task_accuracies
from .loop import TrainResult, train
from .programs import Share, StatementStore
from .state import PRETRAIN_FOLDER
from .training_data import TrainingData, load_training_data

METRICS_FORMAT = 1
_COUNTS = ("name", "device", "licence", "tasks", "programs", "programs_without_features")


@dataclass(frozen=True)
class CheckpointFacts:
    """Facts of a new checkpoint that do not come from its training.

    Attributes:
        name: by default `arch-family`; version: semantic; command: how to train the same again, for the card.
        lineage: origin and licence, e.g. `weights_licence`, `authors`, `limits`.
    """

    name: str | None = None
    version: str = "0.1.0"
    lineage: dict[str, Any] = field(default_factory=dict)
    command: str | None = None


@dataclass(frozen=True)
class FitResult:
    """A new checkpoint, not yet saved, the result of its last stage, and the contents of `metrics.json`."""

    checkpoint: Checkpoint
    result: TrainResult
    metrics: dict[str, Any]


def fit(
    data: TrainingData,
    config: TrainConfig,
    seed: int = 0,
    *,
    init: Checkpoint | None = None,
    facts: CheckpointFacts | None = None,
    folder: Path | None = None,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
    world: World = ALONE,
) -> FitResult:
    """Train a recipe on the programs of one corpus, or of several.

    With several, a recipe that has a `[finetune]` table trains on the others first and goes on with the target's
    programs alone; without it, and from a start, it learns all at once. A start is fine-tuned, and kept as epoch -1
    where no epoch ranks the validation tasks better.

    Args:
        data: of the recipe's features, by `load_training_data`.
        init: whose weights are the start.
        folder: where the state of the training is kept, and continued.
        on_epoch: gets each entry of the history.
        world: the processes that train together, and on which device; the checkpoint comes back on the CPU.

    Raises:
        TrainingError: `init` is of another architecture or reads other features, or see `train`.
    """
    model = _start(config, data, init, seed).to(world.device)
    stages = _stages(config, data, init is not None)
    start, metric = deepcopy(model.state_dict()), stages[-1][0].select
    before = evaluate_model(model, data.val, world) if init is not None and data.val is not None else {}
    results = []
    for number, (settings, programs) in enumerate(stages):
        own = folder if number + 1 == len(stages) else folder and folder / PRETRAIN_FOLDER
        results.append(train(model, programs, data.val, settings, seed, own, on_epoch, world))
    result = results[-1]
    if metric in before and result.best[metric] <= before[metric]:
        model.load_state_dict(start)
        result = replace(result, best_epoch=-1, best=before)
    model.to("cpu")
    facts = facts or CheckpointFacts()
    training = {
        "command": facts.command,
        "recipe": config.as_dict(),
        "parameters": model.parameter_count(),
        "seed": seed,
        "seconds": round(sum(entry["seconds"] for each in results for entry in each.history), 1),
        "machine": machine(world.device),
        "best_epoch": result.best_epoch,
        "stages": len(stages),
        "init": init and f"{init.config.name}@{init.config.version}",
        "programs_fraction": data.share.programs,
        "programs_per_task": data.share.per_task,
        "corpus": data.corpora[0],
        "sources": data.corpora[1:],
    }
    checkpoint = CheckpointConfig(
        name=facts.name or f"{model.arch}-{data.device.family}",
        version=facts.version,
        lineage=facts.lineage,
        arch=model.arch,
        model=model.config.as_dict(),
        feature_schema=data.schema.name,
        feature_version=data.schema.version,
        family=data.device.family,
        # The device as it was: a later correction of its spec sheet must not change what the model reads.
        device=data.device.to_dict(),
        training=training,
        tvm=str(data.corpora[0].get("tvm_version", "")),
        trust=class_trust(task_accuracies(model, data.train, data.val, data.kinds, world)),
    )
    return FitResult(Checkpoint(checkpoint, model, data.device), result, _metrics(model, training, data, world))


def train_checkpoint(
    corpora: Sequence[Corpus],
    config: TrainConfig,
    folder: Path,
    share: Share,
    store: StatementStore,
    note: Callable[[str], None] = lambda _: None,
    world: World = ALONE,
    files: Mapping[str, bytes] = MappingProxyType({}),
    **how: Any,
) -> FitResult:
    """Fit a recipe to corpora, the first of which judges, and leave checkpoint and `metrics.json` in a folder.

    Args:
        folder: keeps the state of the training too; a training that was stopped goes on from its last saved epoch.
        share: how much is taken, and the seed.
        note: gets a line about each epoch.
        files: what else the checkpoint brings: name -> content.
        how: `init` and `facts` of `fit`, with whose errors it ends.
    """

    def report(entry: dict[str, float]) -> None:
        note(epoch_line(f"epoch {int(entry['epoch']) + 1}/{config.epochs}", entry))

    data = load_training_data(corpora[0], corpora[1:], config.feature_schema, share, store)
    on_epoch = report if world.rank == 0 else None
    fitted = fit(data, config, share.seed, folder=folder, on_epoch=on_epoch, world=world, **how)
    if world.rank == 0:
        write_files(folder, {**files, "metrics.json": json_file(fitted.metrics)})
        fitted.checkpoint.save(folder)  # the config last, since it makes the folder a checkpoint
    return fitted


def epoch_line(title: str, entry: Mapping[str, float]) -> str:
    """Return the line of an epoch: loss, validation scores where there are any, and seconds."""
    names = {"val_pairwise": "val pairwise", "val_mean_top1": "top-1"}
    scores = [f"{text} {entry[key]:.4f}" for key, text in names.items() if key in entry]
    return "  ".join([title, f"loss {entry['loss']:.4f}", *scores, f"{entry['seconds']:.1f} s"])


def _start(config: TrainConfig, data: TrainingData, init: Checkpoint | None, seed: int) -> CostModel:
    """Return the model before its first epoch: of random weights, or with another checkpoint's."""
    if init is None:
        model = create(config.arch, seed=seed, **_fitting_settings(config, data))
        model.prepare(torch.from_numpy(data.train.features))
        return model
    reads = (init.config.arch, init.config.feature_schema, init.config.feature_version)
    wanted = (config.arch, data.schema.name, data.schema.version)
    if reads != wanted:
        raise TrainingError(
            f"{init.config.name} is {reads[0]} on {reads[1]} (version {reads[2]}); the recipe makes "
            f"{wanted[0]} on {wanted[1]} (version {wanted[2]})",
            remedy="choose the recipe of the checkpoint's architecture, and a corpus of its kind of device",
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
    if config.finetune and not started and data.own is not None and data.sources is not None:
        return [(config.pretraining(), data.sources), (config.finetuning(), data.own)]
    return [(config.finetuning() if started else config.pretraining(), data.train)]


def _metrics(model: CostModel, training: dict[str, Any], data: TrainingData, world: World) -> dict[str, Any]:
    part, judge = next(
        (n, d) for n, d in (("test", data.test), ("val", data.val), ("train", data.train)) if d is not None
    )
    heads = head_scores(model, judge)
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
        "results": {"model": evaluate_model(model, judge, world)},
        "validation": evaluate_model(model, data.val, world) if data.val is not None else None,
        **({"heads": heads} if heads else {}),
    }


_STEPS = 20  # numbers of trees that are tried on the validation tasks, evenly spread


def fit_trees(ranker: XGBoostRanker, data: TrainingData, seed: int = 0) -> XGBoostRanker:
    """Fit a ranker with these settings, and keep the first so many trees that rank the validation tasks best.

    All trees are kept where no two programs of the validation tasks can be compared.
    """
    # Statements are a set; primitives are a sequence, whose positions have a meaning.
    layout = {"pool": data.schema.source == "statements", "hardware": data.schema.hardware}
    ranker = replace(ranker, **layout, seed=ranker.seed + seed)
    ranker.fit(data.train.features, data.train.labels, data.train.group)
    if data.val is None:
        return ranker
    counts = np.linspace(0, ranker.rounds, _STEPS + 1)[1:].round().astype(int)
    scores = {count: evaluate_model(ranker.keep(count), data.val)["pairwise"] for count in map(int, counts)}
    known = {count: score for count, score in scores.items() if np.isfinite(score)}
    return ranker.keep(max(known, key=lambda count: known[count], default=ranker.rounds))
