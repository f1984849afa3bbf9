"""What a base forgets that learns one device after another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from tchub.zoo.adapt.continual import ContinualConfig
from tchub.zoo.training import evaluate_model

from scripts.benchmarks.common import kept, note, spread
from scripts.benchmarks.transfer.continual import EQUATIONS, SETTINGS, knowledge_base
from scripts.benchmarks.transfer.data import Scene, cut

# Devices that one base learns one after another.
CHAIN = ("v100", "k80", "mi50", "rtx2080ti", "a100")
# Programs of a task that it learns at most: what is forgotten is asked, not what is known.
CHAIN_CAP = 100
OURS = "EWC and rehearsal"
VARIANTS = {OURS: SETTINGS, "EWC": EQUATIONS, "neither": replace(EQUATIONS, strength=0.0)}


def forget(scenes: Sequence[Scene], seed: int, config: ContinualConfig, folder: Path) -> dict[str, Any]:
    """After each new device the base's `scores` on all it has met, in their order."""
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
    scenes = cache(lambda: [runs.library.scene(n, tuple(o for o in CHAIN if o != n), False, runs.split) for n in CHAIN])
    models, results = runs.folder / "models" / runs.split, runs.folder / "results" / runs.split
    chains: dict[str, dict[int, dict[str, Any]]] = {}
    for seed, (variant, config) in product(seeds, VARIANTS.items()):
        path = results / "forgetting" / f"{variant}-{seed}.json"
        if run := kept(path, lambda s=seed, c=config: forget(scenes(), s, c, models), runs.clock):
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
