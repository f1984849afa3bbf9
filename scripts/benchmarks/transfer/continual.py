"""Continual distillation in the transfer benchmark: a knowledge base of the sources, its column on the target."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tchub.zoo.adapt.continual import ContinualConfig, DistillConfig, add_device, learn, learning_order, start_base
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from tchub.zoo.devices import Device
from tchub.zoo.models import CostModel, ProgressiveNetwork
from tchub.zoo.training import RankingDataset, evaluate_model, train
from tchub.zoo.training.dataset import steps_per_epoch
from tchub.zoo.training.programs import corpus_device

from scripts.benchmarks.transfer.case import IN_TASK, Answer, Case, kept_model, train_new
from scripts.benchmarks.transfer.data import Scene
from scripts.zoo.plan import open_corpus

# As for all other trainings here, the last epoch is kept: no label is left to choose one by.
SETTINGS = ContinualConfig(select="last")
# Equations 7 to 11 with tchub's epochs and rates: what a base of the product adds to the loss is left out.
EQUATIONS = replace(SETTINGS, rehearsal=0.0)
# Share of the recipe's rate at which what the sources taught goes on to a tenth of the target; chosen on
# validation tasks.
GENTLE = 0.3
# Steps of each phase of a base's further device at most: all of a source's programs taught a column more in so many
# than a hundred a task in the recipe's epochs, in twice the time.
MOST_STEPS = 400
# Rank agreement, -1 to 1, below which a source misleads; share of the best source's below which it dilutes.
LEAST_AGREEMENT, LEAST_SHARE = 0.05, 0.5


def paced(config: ContinualConfig, arch: str, data: RankingDataset) -> ContinualConfig:
    """The settings at the architecture's rates, in more epochs where there is little data and fewer where much."""
    phases = DistillConfig().phases(arch, data)
    own = phases.recipe
    most = max(2, math.ceil(MOST_STEPS / steps_per_epoch(data, own.programs_per_group, own.groups_per_batch)))
    return replace(
        phases,
        learn_epochs=min(phases.learn_epochs, most),
        distill_epochs=min(phases.distill_epochs, most),
        distill_period=min(phases.distill_period, max(1, most // 2)),
        **{name: getattr(config, name) for name in ("strength", "rehearsal", "column", "select")},
    )


def gone_on(model: CostModel, case: Case) -> CostModel:
    """A copy of a model that learnt what was measured, gently; with few labels it stops by itself."""
    if case.protocol == IN_TASK:
        return fine_tune(model, case.measured, FineTuneConfig(seed=case.seed)).model
    return learn_more(model, case.measured, case.arch, case.seed)


def learn_more(model: CostModel, data: RankingDataset, arch: str, seed: int) -> CostModel:
    """A copy of a trained model that learnt more programs, at a share of the recipe's rate."""
    more = copy.deepcopy(model)
    config = paced(EQUATIONS, arch, data)
    train(more, data, None, replace(config, learn_rate=GENTLE * config.learn_rate).learning(), seed)
    return more.eval()


def knowledge_base(
    scene: Scene,
    taught: Sequence[tuple[str, RankingDataset]],
    seed: int,
    folder: Path,
    arch: str = "tilenet",
    config: ContinualConfig = SETTINGS,
) -> list[ProgressiveNetwork]:
    """A base after each device, of which every prefix is kept: a network of the first, then both phases for each."""
    bases: list[ProgressiveNetwork] = []
    for count, (_, data) in enumerate(taught, 1):
        names = "+".join(name for name, _ in taught[:count])

        def make(data: RankingDataset = data) -> ProgressiveNetwork:
            if bases:
                return add_device(bases[-1], data, None, paced(config, bases[-1].kb.arch, data), seed).kb
            return start_base(train_new(scene, data, seed, arch), data, config, seed=seed)

        base = kept_model(folder / f"{arch}-{names}-{seed}", scene, make)
        assert isinstance(base, ProgressiveNetwork)
        bases.append(base)
    return bases


def column_of(base: ProgressiveNetwork, case: Case, config: ContinualConfig = EQUATIONS) -> ProgressiveNetwork:
    """The base with a column that learnt what was measured; with few labels it stops by itself."""
    base.new_column(config.column, case.seed)
    if case.protocol == IN_TASK:
        tuned = fine_tune(base.learning(), case.measured, FineTuneConfig(seed=case.seed)).model
        assert isinstance(tuned, ProgressiveNetwork)
        return tuned
    config = paced(config, case.arch, case.measured)
    learn(base, case.measured, None, replace(config, learn_rate=GENTLE * config.learn_rate), case.seed)
    return base.eval()


def continual(case: Case) -> Answer:
    """A knowledge base of the sources, in their order, and a column on the target, not distilled (TCL, 7.4.3)."""
    return _answer(case, case.taught, EQUATIONS)


def chosen(case: Case) -> Answer:
    """tchub's way: sources whose own model orders what was measured rightly, the best last, and rehearsal."""
    scene = case.scene
    # Rank agreement is Kendall's tau over the pairs that are apart by more than the noise; NaN without such a pair.
    agreement = {name: 2 * evaluate_model(case.alone(name), case.measured)["pairwise"] - 1 for name in scene.sources}
    devices = {name: corpus_device(open_corpus(name)) for name in scene.sources}
    return _answer(case, agreeing_sources(scene.device, devices, agreement) or scene.sources, SETTINGS)


def _answer(case: Case, order: Sequence[str], config: ContinualConfig) -> Answer:
    folder = case.folder / "bases" / f"{config.strength:g}-{config.rehearsal:g}"
    taught = [(name, case.given(name)) for name in order]
    base = knowledge_base(case.scene, taught, case.seed, folder, case.arch, config)[-1]
    return case.answer(column_of(base, case, config))


def agreeing_sources(target: Device, devices: Mapping[str, Device], agreement: Mapping[str, float]) -> list[str]:
    """Return the sources to learn, the one that agrees best last; those without a measured agreement come first."""
    known = {name: value for name, value in agreement.items() if not math.isnan(value)}
    least = max(LEAST_AGREEMENT, LEAST_SHARE * max(known.values(), default=0.0))
    order = [name for name in learning_order(target, devices) if devices[name].kind == target.kind]
    unmeasured = [name for name in order if name not in known]
    # Of equal agreement the device that is more like the target comes last.
    return unmeasured + sorted((name for name in order if known.get(name, -1.0) >= least), key=lambda name: known[name])
