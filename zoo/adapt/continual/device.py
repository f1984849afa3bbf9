"""`add_device`: a knowledge base learns one more device, and keeps those it knows (papers: TCL, section 6)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ...devices import Device
from ...devices.registry import distance
from ...models import CostModel, ProgressiveNetwork
from ...training import RankingDataset, TrainResult, evaluate_model
from ...training.state import ensure_same_run
from ..errors import LabelError
from ..guard import compare
from ..layers import check_features
from ..method import model_digest
from .config import ContinualConfig
from .phases import distill, learn, remember

RUN_FILE = "device.json"
# Programs of a task at most that are scored: their pairs are the square of it, and more would hardly narrow it.
MOST_PROGRAMS = 64


@dataclass(frozen=True)
class AccuracyChange:
    """A base's pairwise accuracy on some programs before and after a device, and 90% bounds of the change."""

    before: float
    after: float
    interval: tuple[float, float]

    @property
    def fell(self) -> bool:
        """True if the base ranks them worse, beyond doubt."""
        return self.interval[1] < 0

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.before:.3f} before it and {self.after:.3f} after it (90% interval of the change "
            f"{low:+.3f} to {high:+.3f})"
        )


@dataclass(frozen=True)
class DeviceResult:
    """A base that knows one device more.

    Attributes:
        kb: the base, which answers; the one passed in is unchanged. As large as before.
        adapted: the same before the second phase, whose column answers: the best model of this device.
        learning, distilling: the trainings of the two phases.
        gate: mean gate of the second, see `distill`.
        validation: `evaluate_model` on its validation tasks of `before` (the base as it came), `column` and `base`;
            empty without any.
        change: of the base on them, with its uncertainty; None without any, or where no two of their programs differ.
    """

    kb: ProgressiveNetwork
    adapted: ProgressiveNetwork
    learning: TrainResult
    distilling: TrainResult
    gate: float
    validation: dict[str, dict[str, float]] = field(default_factory=dict)
    change: AccuracyChange | None = None


def start_base(
    model: CostModel,
    data: RankingDataset,
    config: ContinualConfig | None = None,
    lateral: int = 16,
    seed: int = 0,
) -> ProgressiveNetwork:
    """Make a knowledge base of a model that was trained on a first device, with laterals of some rank.

    `data` are programs of that device: they, config and seed decide the Fisher diagonal.
    """
    base = ProgressiveNetwork.around(model, lateral)
    base.new_column("base", seed)
    check_features(base, data)
    remember(base, data, config, seed)
    return base.eval()


def add_device(
    kb: ProgressiveNetwork,
    data: RankingDataset,
    val: RankingDataset | None = None,
    config: ContinualConfig | None = None,
    seed: int = 0,
    folder: Path | None = None,
    on_epoch: Callable[[str, dict[str, float]], None] = lambda phase, entry: None,
) -> DeviceResult:
    """Learn one device by both phases, and add its Fisher diagonal at the end.

    Before them the base opens the columns that distinguish this device (`CostModel.admit`): no score moves.

    Args:
        kb: the base so far.
        data: the new device's programs; those of earlier devices are not needed.
        val: its validation tasks; they choose the column's epoch.
        folder: keeps the state of every epoch, so that a run that was stopped goes on to the same weights.
        on_epoch: called with the phase, "learn" or "distill", and each entry of its history.

    Raises:
        AdaptError: the programs have other features than the base reads.
        TrainingError: the folder holds the run of another base, seed or settings, or a loss is no longer finite.
    """
    config = config or ContinualConfig()
    check_features(kb, data, val)
    if folder is not None:
        # The phases' own states do not say which base they began from.
        run = {"base": model_digest(kb), "config": asdict(config), "seed": seed}
        ensure_same_run(folder / RUN_FILE, run, "use another folder, or delete this one to start over")

    was, kb = copy.deepcopy(kb).distilling().eval(), copy.deepcopy(kb)
    kb.admit(torch.from_numpy(data.features))
    kb.new_column(config.column, seed)
    learning = learn(kb, data, val, config, seed, folder and folder / "learn", partial(on_epoch, "learn"))
    adapted = copy.deepcopy(kb)
    distilling, gate = distill(kb, data, val, config, seed, folder and folder / "distill", partial(on_epoch, "distill"))
    remember(kb, data, config, seed)
    kb.eval()
    if val is None:
        return DeviceResult(kb, adapted, learning, distilling, gate)
    models = {"before": was, "column": adapted, "base": kb}
    scores = {name: evaluate_model(model, val) for name, model in models.items()}
    return DeviceResult(kb, adapted, learning, distilling, gate, scores, measure_change(was, kb, val, seed))


def measure_change(before: CostModel, after: CostModel, data: RankingDataset, seed: int = 0) -> AccuracyChange | None:
    """Compare two states of a base on programs that it has not learnt, at most `MOST_PROGRAMS` of a task.

    Returns:
        None where no two programs of a task differ by more than the noise.
    """
    rng = np.random.default_rng([seed, 11])
    some = data.take(np.sort(np.concatenate([rng.permutation(members)[:MOST_PROGRAMS] for members in data.members])))
    was, now = (model.score(some.features) for model in (before, after))
    try:
        result = compare(was, now, some.latency, some.group, seed=seed)
    except LabelError:
        return None
    return AccuracyChange(result.base, result.adapted, result.interval)


def learning_order(target: Device, sources: Mapping[str, Device]) -> list[str]:
    """Return names of sources in the order to learn them: the device most like the target last (TCL, table 5).

    Devices are compared by `devices.distance`: instruction set, vendor and family, then the spec sheets.
    """
    return sorted(sorted(sources), key=lambda name: distance(sources[name], target), reverse=True)
