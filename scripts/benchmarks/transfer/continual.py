"""Continual distillation in the transfer benchmark: a base of the sources and its column, and what a base forgets."""

import copy
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from tchub.zoo.adapt.continual import ContinualConfig, DistillConfig, add_device, start_base
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from tchub.zoo.models import CostModel, ProgressiveNetwork
from tchub.zoo.training import RankingDataset, evaluate_model, train
from tchub.zoo.training.dataset import steps_per_epoch

from scripts.benchmarks.common import note, spread
from scripts.benchmarks.transfer.case import IN_TASK, Answer, Case, kept_model, train_new
from scripts.benchmarks.transfer.data import Scene, cut

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


def column_of(base: ProgressiveNetwork, case: Case) -> ProgressiveNetwork:
    """The base with a column that learnt what was measured; with few labels it stops by itself."""
    base.new_column(EQUATIONS.column, case.seed)
    if case.protocol == IN_TASK:
        tuned = fine_tune(base.learning(), case.measured, FineTuneConfig(seed=case.seed)).model
        assert isinstance(tuned, ProgressiveNetwork)
        return tuned
    config = paced(EQUATIONS, case.arch, case.measured)
    gentle = replace(config, learn_rate=GENTLE * config.learn_rate)
    train(base.learning(), case.measured, None, gentle.learning(), case.seed)
    return base.eval()


def continual(case: Case) -> Answer:
    """A knowledge base of the sources, in their order, and a column on the target, not distilled (TCL, 7.4.3)."""
    folder = case.folder / "bases" / f"{EQUATIONS.strength:g}-{EQUATIONS.rehearsal:g}"
    taught = [(name, case.given(name)) for name in case.taught]
    base = knowledge_base(case.scene, taught, case.seed, folder, case.arch, EQUATIONS)[-1]
    return case.answer(column_of(base, case))


# Devices that one base learns one after another.
CHAIN = ("v100", "k80", "mi50", "rtx2080ti", "a100")
# Programs of a task that it learns at most: what is forgotten is asked, not what is known.
CHAIN_CAP = 100
OURS = "EWC and rehearsal"
VARIANTS = {OURS: SETTINGS, "EWC": EQUATIONS, "neither": replace(EQUATIONS, strength=0.0)}


def forget(read: Callable[[], Sequence[Scene]], seed: int, config: ContinualConfig, folder: Path) -> dict[str, Any]:
    """After each new device the base's `scores` on all it has met, in their order."""
    scenes = read()
    taught = [(scene.target, cut(scene.own, scene.own.task_ids, CHAIN_CAP)) for scene in scenes]
    chain = folder / f"chain-{config.strength:g}-{config.rehearsal:g}"
    bases = knowledge_base(scenes[0], taught, seed, chain, config=config)
    scores = []
    for count, base in enumerate(bases, 1):
        own = [evaluate_model(base, scene.judged) for scene in scenes[:count] if scene.judged is not None]
        scores.append([{name: one[name] for name in ("pairwise", "mean_top1")} for one in own])
    note(f"forgetting, {chain.name}, seed {seed}: {scores[-1]}")
    return {"scores": scores}


def lost(scores: Sequence[Sequence[dict[str, float]]], name: str) -> float:
    """Mean over all devices but the last: the score when it had just been learnt, less that after all devices."""
    last = scores[-1]
    return statistics.mean(scores[i][i][name] - last[i][name] for i in range(len(last) - 1))


def forgetting_rows(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each device and variant: its score when it was learnt, and after each further device."""
    rows = []
    for variant, own in runs.items():
        for i, device in enumerate(CHAIN):
            row: dict[str, Any] = {"base": variant, "device": device, "seeds": len(own)}
            for count in range(i, len(CHAIN)):
                row[f"after {count + 1}"] = spread([run["scores"][count][i]["pairwise"] for run in own])
            rows.append(row)
    return rows


def devices_block(runs: Any, seeds: Sequence[int]) -> dict[str, Any]:
    """Forgetting with and without EWC; each part is made only where it is missing.

    Returns:
        `forgetting`: rows; `lost`: of each variant, the score lost on earlier devices, mean and deviation
        over `forgetting_seeds`.
    """
    scenes = cache(lambda: [runs.scene(name, tuple(o for o in CHAIN if o != name), False) for name in CHAIN])
    models = runs.folder / "models" / runs.split
    chains: dict[str, dict[int, dict[str, Any]]] = {}
    for seed, (variant, config) in product(seeds, VARIANTS.items()):
        forgotten = partial(forget, scenes, seed, config, models)
        if run := runs.chains.get(forgotten, runs.clock, base=variant, seed=seed):
            chains.setdefault(variant, {})[seed] = run
    if not chains:
        return {}
    every = {variant: list(own.values()) for variant, own in chains.items()}
    return {
        "forgetting": forgetting_rows(every),
        "lost": {
            variant: {name: spread([lost(run["scores"], name) for run in own]) for name in ("pairwise", "mean_top1")}
            for variant, own in every.items()
        },
        "forgetting_seeds": {variant: list(own) for variant, own in chains.items()},
    }
