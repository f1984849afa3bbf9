"""`add_device`: a knowledge base learns one more device, and keeps those it knows."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ...models import CostModel, Progressive
from ...training import RankingDataset, TrainResult, evaluate_model
from ...training.claim import claim
from .change import Change, measure_change
from .config import ContinualConfig
from .distill import Distilled, distill
from .fisher import remember
from .learn import check_features, learn

RUN_FILE = "device.json"
OnEpoch = Callable[[str, dict[str, float]], None]


@dataclass(frozen=True)
class AddedDevice:
    """A base that knows one device more, and how it came about.

    Attributes:
        kb: the base, which answers; the one passed in is unchanged. As large as before.
        adapted: the same before the second phase, whose column answers: the best model of this device.
        learnt: the first phase; distilled: the second, with its gate.
        base_before, base_after, column: `evaluate_model` on the device's validation tasks, empty without any.
        change: of the base on them, with its uncertainty; None without any, or where they tell nothing.
    """

    kb: Progressive
    adapted: Progressive
    learnt: TrainResult
    distilled: Distilled
    base_before: dict[str, float] = field(default_factory=dict)
    base_after: dict[str, float] = field(default_factory=dict)
    column: dict[str, float] = field(default_factory=dict)
    change: Change | None = None


def start_base(
    model: CostModel,
    data: RankingDataset,
    config: ContinualConfig | None = None,
    lateral: int = 16,
    seed: int = 0,
) -> Progressive:
    """A knowledge base of a model that was trained on a first device.

    Args:
        model: any network of the zoo.
        data: programs of the device that it knows, which tell what its weights are worth to it.
        config: settings of the Fisher diagonal.
        lateral: rank of the laterals.
        seed: which groups of programs.
    """
    base = Progressive.around(model, lateral)
    base.new_column("base", seed)
    check_features(base, data)
    remember(base, data, config, seed)
    return base.eval()


def add_device(
    kb: Progressive,
    data: RankingDataset,
    val: RankingDataset | None = None,
    config: ContinualConfig | None = None,
    seed: int = 0,
    folder: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> AddedDevice:
    """Both phases for one device, the worth of the weights to it added at the end.

    Before them the base opens what tells this device from those it knows (`CostModel.admit`): no score of theirs moves.

    Args:
        kb: what is known so far.
        data: the new device's programs; those of earlier devices are not needed.
        val: its validation tasks; they choose the column's epoch.
        config: the settings.
        seed: of all that is drawn.
        folder: keeps the state of every epoch, so that a run that was stopped goes on to the same weights.
        on_epoch: told the phase, "learn" or "distill", and each entry of its history.

    Raises:
        SourceMismatchError: the programs have other features than the base reads.
        ResumeError: the folder holds the run of another base, seed or settings.
        DivergedError: a loss is no longer finite.
    """
    config = config or ContinualConfig()
    check_features(kb, data, val)
    if folder is not None:
        _claim(folder, kb, config, seed)
    was, kb = copy.deepcopy(kb).distilling().eval(), copy.deepcopy(kb)
    kb.admit(torch.from_numpy(data.features))
    kb.new_column(config.column, seed)
    learnt = learn(kb, data, val, config, seed, folder and folder / "learn", _told(on_epoch, "learn"))
    adapted = copy.deepcopy(kb)
    distilled = distill(kb, data, val, config, seed, folder and folder / "distill", _told(on_epoch, "distill"))
    remember(kb, data, config, seed)
    kb.eval()
    if val is None:
        return AddedDevice(kb, adapted, learnt, distilled)
    before, after, column = (evaluate_model(model, val) for model in (was, kb, adapted))
    change = measure_change(was, kb, val, seed)
    return AddedDevice(kb, adapted, learnt, distilled, before, after, column, change)


def _told(on_epoch: OnEpoch | None, phase: str) -> Callable[[dict[str, float]], None] | None:
    return None if on_epoch is None else lambda entry: on_epoch(phase, entry)


def _claim(folder: Path, kb: Progressive, config: ContinualConfig, seed: int) -> None:
    """Writes down whose run the folder holds: the phases' own states do not tell the base they began from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(kb.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    mine = {"base": digest.hexdigest(), "config": config.as_dict(), "seed": seed}
    claim(folder / RUN_FILE, mine, "use another folder, or delete this one to start over")
