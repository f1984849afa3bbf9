"""Training a model of trees: its library's own objective, cut back to the number of trees that validates best."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..models import TreeModel, get_architecture
from .config import TrainConfig
from .dataset import RankingDataset
from .loop import TrainResult, evaluate_model
from .state import write_curve

# Numbers of trees that are tried on the validation tasks, evenly spread.
_STEPS = 20


def grow(
    model: TreeModel,
    data: RankingDataset,
    val: RankingDataset | None,
    config: TrainConfig,
    folder: Path | None = None,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> TrainResult:
    """Fits all trees in place, then keeps the first so many of them that `config.select` is best.

    Args:
        model: its config has the number of trees, its rates and its seed.
        data: what to learn from.
        val: what chooses; without it, with `select = "last"`, or where its metric is NaN, all trees are kept.
        config: the recipe; only `select` is read.
        folder: where `curve.csv` is written.
        on_epoch: told each entry of the history: `epoch` is the last tree that scored, `loss` the share of training
            pairs in the wrong order.

    Raises:
        MissingPackageError: the library is not installed.
    """
    started = time.perf_counter()
    model.fit(data.features, data.labels, data.group)
    spent, whole = time.perf_counter() - started, model.booster
    choosing = val is not None and config.select != "last"
    counts = np.unique(np.linspace(0, model.config.rounds, _STEPS + 1)[1:].round().astype(int))
    history: list[dict[str, float]] = []
    for count in counts if choosing else counts[-1:]:
        _keep(model, whole, int(count))
        entry: dict[str, float] = {"epoch": int(count) - 1, "loss": 1 - evaluate_model(model, data)["pairwise"]}
        entry |= {f"val_{k}": v for k, v in evaluate_model(model, val).items()} if val is not None else {}
        history.append(entry | {"seconds": spent})
        spent = 0.0
        if on_epoch:
            on_epoch(history[-1])
    # NaN where no two programs of the validation tasks can be compared: then they choose nothing.
    known = [e for e in history if np.isfinite(e[f"val_{config.select}"])] if choosing else []
    best = max(known, key=lambda e: e[f"val_{config.select}"], default=history[-1])
    _keep(model, whole, int(best["epoch"]) + 1)
    if folder is not None:
        write_curve(folder, history)
    scores = {k.removeprefix("val_"): v for k, v in best.items() if k.startswith("val_")}
    return TrainResult(history, int(best["epoch"]), scores)


def _keep(model: TreeModel, whole: Any, count: int) -> None:
    """The model with the first trees of `whole`, as a checkpoint of them would be read."""
    if get_architecture(model.arch).weights == "xgboost":
        model.restore(bytes(whole[:count].save_raw("json")))
    else:
        model.restore(whole.model_to_string(num_iteration=count).encode())
