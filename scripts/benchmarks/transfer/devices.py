"""How many sources, in which order, what is forgotten on the way, and what a further device costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tchub.zoo.adapt.continual import ContinualConfig
from tchub.zoo.adapt.ensemble import recipe_for
from tchub.zoo.adapt.fine_tune import in_head
from tchub.zoo.models import CostModel, create
from tchub.zoo.training import RankingDataset, evaluate_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from scripts.benchmarks.common import Clock, kept, note, spread
from scripts.benchmarks.transfer.case import train_heads
from scripts.benchmarks.transfer.continual import EQUATIONS, SETTINGS, knowledge_base
from scripts.benchmarks.transfer.data import Scene, cut

# Devices that one base learns one after another.
CHAIN = ("v100", "k80", "mi50", "rtx2080ti", "a100")
# Programs of a task that it learns at most: what is forgotten is asked, not what is known.
CHAIN_CAP = 100
OURS = "EWC and rehearsal"
VARIANTS = {OURS: SETTINGS, "EWC": EQUATIONS, "neither": replace(EQUATIONS, strength=0.0)}


def forget(scenes: Sequence[Scene], seed: int, config: ContinualConfig, folder: Path) -> dict[str, Any]:
    """After each new device the base's `scores` on all it has met, in their order, and the `seconds` that it took."""
    taught = [(scene.target, cut(scene.own, scene.own.task_ids, CHAIN_CAP)) for scene in scenes]
    chain = folder / f"chain-{config.strength:g}-{config.rehearsal:g}"
    bases = knowledge_base(scenes[0], taught, seed, chain, config=config)
    scores = []
    for count, base in enumerate(bases, 1):
        own = [evaluate_model(base.model, scene.judged) for scene in scenes[:count] if scene.judged is not None]
        scores.append([{name: one[name] for name in ("pairwise", "mean_top1")} for one in own])
    note(f"forgetting, {chain.name}, seed {seed}: {scores[-1]}")
    return {"scores": scores, "seconds": [base.seconds for base in bases]}


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


def cost_rows(scenes: Sequence[Scene], chain: dict[str, Any], folder: Path, clock: Clock) -> list[Any]:
    """Parameters, work and training seconds beside the number of devices: a base, and a trunk with heads."""
    features = scenes[0].own.features[:64]
    settings = {"width": scenes[0].schema.width, "hardware": scenes[0].schema.hardware}
    base = footprint(create("tilenet-kb", **settings), features)
    plain = create("tilenet", **settings)
    rows = []
    for count in range(1, len(scenes) + 1):
        trained = kept(folder / f"multi-task-{count}.json", lambda n=count: share_trunk(scenes[:n]), clock)
        if trained is None:
            break
        heads = footprint(plain, features, count)
        rows.append({
            "devices": count,
            "base and column, parameters": base[0],
            "trunk and heads, parameters": heads[0],
            "base and column, FLOPs a program": base[1],
            "trunk and heads, FLOPs a program": heads[1],
            "seconds to add the device, base": chain["seconds"][count - 1],
            "seconds to add the device, heads": trained["seconds"],
        })  # fmt: skip
    return rows


def share_trunk(scenes: Sequence[Scene]) -> dict[str, float]:
    """Seconds to train a network of one head a device on all devices together, which a further one repeats."""
    taught = [cut(scene.own, scene.own.task_ids, CHAIN_CAP) for scene in scenes]
    started = time.process_time()
    train_heads("tilenet", taught[-1], taught[:-1], recipe_for("tilenet", RankingDataset.concat(taught)), 0)
    return {"seconds": time.process_time() - started}


def devices_block(runs: Any, seeds: Sequence[int]) -> dict[str, Any]:
    """Forgetting with and without EWC, and what a further device costs; each part is made only where it is missing.

    Returns:
        `forgetting` and `cost`: rows; `lost`: of each variant, the score lost on earlier devices, mean and deviation
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
    first = next(iter(every.values()))[0]
    return {
        "forgetting": forgetting_rows(every),
        "cost": cost_rows(scenes(), first, results / "cost", runs.clock),
        "lost": {
            variant: {name: spread([lost(run["scores"], name) for run in own]) for name in ("pairwise", "mean_top1")}
            for variant, own in every.items()
        },
        "forgetting_seeds": {variant: list(own) for variant, own in chains.items()},
    }


def head_parameters(model: CostModel) -> int:
    """Return the trained numbers of a network's head."""
    return sum(p.numel() for name, p in model.named_parameters() if in_head(name))


def footprint(model: CostModel, features: np.ndarray, devices: int = 1) -> tuple[int, float]:
    """Return parameters, and floating-point operations that score one program, of a network with a head a device.

    PyTorch counts the operations on a real forward pass: products of matrices, convolutions and attention. The trunk
    counts once. A network without heads of devices, such as a knowledge base, costs the same for any number of them:
    leave `devices` at 1.

    Args:
        features: (N, rows, width) programs, N >= 1; the work is their mean.
    """
    whole, head = _count_flops(model, features)
    more = devices - 1
    return model.parameter_count() + more * head_parameters(model), (whole + more * head) / len(features)


def _count_flops(model: CostModel, features: np.ndarray) -> tuple[int, int]:
    """Operations of a forward pass, and those of them in the head."""
    weight, was_training = next(model.parameters()), model.training
    model.eval()
    x = torch.from_numpy(features).to(weight.device, weight.dtype)
    # Attention and recurrences in their plain forms, of whose parts PyTorch knows the work.
    with (
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False, allow_tf32=None),  # pyright: ignore[reportArgumentType]
        FlopCounterMode(display=False) as counter,
    ):
        model(x)
    model.train(was_training)
    counts = {name: sum(operations.values()) for name, operations in counter.get_flop_counts().items()}
    head = [n for n in counts if in_head(n) and not (n.rpartition(".")[0] in counts and in_head(n.rpartition(".")[0]))]
    return counter.get_total_flops(), sum(counts[name] for name in head)
