"""A knowledge base learns one more device, and keeps those it knows (papers: TCL, section 6): `add_device`.

The method `continual` adapts with one: a column beside a frozen base learns the device.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import torch

from ...devices import Device
from ...devices.registry import distance
from ...models import CostModel, ProgressiveNetwork, list_architectures
from ...training import RankingDataset, TrainResult, evaluate_model, train
from ...training.state import ensure_same_run
from ..fine_tune import check_features
from ..guard import AccuracyChange, compare
from ..method import FewShot, SourceData, TrainedModel, TrainingSet, cached_model, model_digest
from .config import ContinualConfig, DistillConfig
from .phases import distill, remember

RUN_FILE = "device.json"
# Programs of a task at most that are scored: their pairs are the square of it, and more would hardly narrow it.
MOST_PROGRAMS = 64


@dataclass(frozen=True)
class DeviceResult:
    """A base that knows one device more.

    Attributes:
        kb: the base, which answers; the one passed in is unchanged.
        adapted: the same before the second phase, whose column answers: the best model of this device.
        learning, distilling: the trainings of the two phases; gate: mean gate of the second, see `distill`.
        validation: scores on its validation tasks of `before` (the base as it came), `column` and `base`.
        change: of the base on them; None without any, or where no two of their programs differ.
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
    config: ContinualConfig,
    lateral: int = 16,
    seed: int = 0,
) -> ProgressiveNetwork:
    """Make a knowledge base of a model that was trained on a first device, on programs of which is `data`."""
    base = ProgressiveNetwork.around(model, lateral)
    base.new_column("base", seed)
    check_features(base, data)
    remember(base, data, config, seed)
    return base.eval()


def add_device(
    kb: ProgressiveNetwork,
    data: RankingDataset,
    val: RankingDataset | None,
    config: ContinualConfig,
    seed: int = 0,
    folder: Path | None = None,
    on_epoch: Callable[[str, dict[str, float]], None] = lambda phase, entry: None,
) -> DeviceResult:
    """Learn one device by both phases, and add its Fisher diagonal at the end.

    Before them the base opens the columns that distinguish this device (`CostModel.admit`): no score moves.

    Args:
        data: the new device's programs; val: its validation tasks, which choose the column's epoch.
        folder: keeps the state of every epoch, so that a run that was stopped goes on to the same weights.
        on_epoch: called with the phase, "learn" or "distill", and each entry of its history.

    Raises:
        AdaptError: the programs have other features than the base reads.
        TrainingError: the folder holds the run of another base, seed or settings, or a loss is no longer finite.
    """
    check_features(kb, data, val)
    if folder is not None:
        # The phases' own states do not say which base they began from.
        run = {"base": model_digest(kb), "config": asdict(config), "seed": seed}
        ensure_same_run(folder / RUN_FILE, run, "use another folder, or delete this one to start over")

    was, kb = copy.deepcopy(kb).distilling().eval(), copy.deepcopy(kb)
    kb.admit(torch.from_numpy(data.features))
    kb.new_column(config.column, seed)
    state, watch = folder and folder / "learn", partial(on_epoch, "learn")
    learning = train(kb.learning(), data, val, config.learning(), seed, state, watch)
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

    None where no two programs of a task differ by more than the noise.
    """
    rng = np.random.default_rng([seed, 11])
    some = data.take(np.sort(np.concatenate([rng.permutation(members)[:MOST_PROGRAMS] for members in data.members])))
    was, now = (model.score(some.features) for model in (before, after))
    result = compare(was, now, some.latency, some.group, seed=seed)
    return None if not result.pairs else AccuracyChange(result.base, result.adapted, result.interval)


K = TypeVar("K", str, int)


def learning_order(target: Device, sources: Mapping[K, Device]) -> list[K]:
    """Return the keys of sources in the order to learn them: the device most like the target last (TCL, table 5)."""
    return sorted(sorted(sources), key=lambda name: distance(sources[name], target), reverse=True)


# Every so many tasks of a source one chooses the epoch.
VALIDATION_EVERY = 10


class Continual(FewShot):
    """Learns corpora one after another into the base, the device most like the target last; then the target's labels.

    A corpus after which the base ranks the target's labels worse, beyond their uncertainty, is left out: the base of
    before goes on. These are the labels to learn from, and few labels show only much harm.

    Then the column learns the target's labels by `fine_tune`, which leaves the base alone; nothing is distilled after
    that (section 7.4.3).
    """

    name: ClassVar[str] = "continual"
    learns_corpora: ClassVar[bool] = True

    def missing(self, base: CostModel, sources: int) -> str | None:
        """Return None for a network that has knowledge bases, or is one."""
        if isinstance(base, ProgressiveNetwork) or f"{base.arch}-kb" in list_architectures("knowledge base"):
            return None
        return f"no knowledge base is made of a {base.arch}"

    def start(self, training_set: TrainingSet) -> TrainedModel:
        """Return a knowledge base that knows the `sources` of its facts, but those `left_out`: they made it worse."""
        base, learnt, left_out = _as_knowledge_base(training_set), [], {}
        by_name = {source.name: source for source in training_set.sources}
        for name in learning_order(training_set.device, {name: one.device for name, one in by_name.items()}):
            extended = _with_source(base.distilling(), by_name[name], training_set)
            change = measure_change(base, extended, training_set.judging, training_set.seed)
            if change is not None and change.fell:
                left_out[name] = asdict(change)
            else:
                base = extended
                learnt.append(name)
        if learnt:
            base.new_column("base", training_set.seed)
        return TrainedModel(base.learning().eval(), {"sources": learnt, "left_out": left_out})


def _as_knowledge_base(training_set: TrainingSet) -> ProgressiveNetwork:
    """Return the base as it is if its column knows a device already, else with a column that is its copy.

    The programs that a plain network learnt from are not at hand, so its Fisher diagonal is 0: only rehearsal protects
    it while the first source is distilled.
    """
    model, seed = training_set.base, training_set.seed
    if not isinstance(model, ProgressiveNetwork):
        base = ProgressiveNetwork.around(model, seed=seed)
        for program in () if training_set.known_devices is None else training_set.known_devices:
            base.note_device(torch.from_numpy(program[None]))
        return base
    base = copy.deepcopy(model)
    if not base.config.as_dict()["column"]:
        base.new_column("base", seed)
    return base


def _with_source(base: ProgressiveNetwork, source: SourceData, training_set: TrainingSet) -> ProgressiveNetwork:
    """Return a base that knows a source too, learnt by the settings of `tchub distill`."""
    programs, val, held = source.data, None, source.data.group % VALIDATION_EVERY == VALIDATION_EVERY - 1
    if held.any():  # a source of few tasks keeps all of them for training
        programs, val = (source.data.take(np.flatnonzero(part)) for part in (~held, held))
    config, seed = DistillConfig().phases(base.kb.arch, programs), training_set.seed

    def learn_source(state: Path | None) -> TrainedModel:
        return TrainedModel(add_device(base, programs, val, config, seed=seed, folder=state).kb, {})

    key = ("source", model_digest(base), source.name, source.data.fingerprint(), repr(config), str(seed))
    extended = cached_model(training_set.folder, key, learn_source).model
    assert isinstance(extended, ProgressiveNetwork)
    return extended
