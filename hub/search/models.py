"""The cost model that guides a tuning run: a checkpoint, MetaSchedule's own, or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...zoo.devices import Device


@dataclass(frozen=True)
class ModelChoice:
    """The choice of a cost model.

    Attributes:
        name: `tcl-epyc+local@1.0.0`, `stock` or `none`.
        title: for a reader.
        make: makes a fresh MetaSchedule cost model.
        reasons: why a checkpoint was chosen, when no name was given.
        update: how a checkpoint learns while tuning.
        schedules: the `schedules.json` that it brings; None where it brings none.
    """

    name: str
    title: str
    make: Callable[[], Any]
    reasons: tuple[str, ...] = ()
    update: str | None = None
    schedules: Path | None = None


def choose_model(
    checkpoint: str | None,
    *,
    seed: int = 0,
    update: str = "auto",
    runs_on: Device | None = None,
    threads: int | None = None,
) -> ModelChoice:
    """Return the model that `tune` was asked for.

    Args:
        checkpoint: a checkpoint's name or folder, None for the one that fits this machine best, `stock` or `none`.
        seed: of the stock model's random warm-up, and of `none`.
        update: how a checkpoint learns while tuning, see `cost_model.PretrainedScorer`.
        runs_on: the device that the programs are for, where it is known, see `cost_model.sheet_to_read`; threads: of
            them, where they are.

    Raises:
        ValueError: an unknown `update`.
        DeviceKindError: the checkpoint is for the other kind of device.
        TchubError: the model cannot learn that way, or whatever the registry raises.
    """
    if checkpoint == "stock":
        return ModelChoice("stock", "MetaSchedule's own model (XGBoost)", lambda: _stock(seed))
    if checkpoint == "none":
        return ModelChoice("none", "no model (random choice)", lambda: _random(seed))
    from ..api import choose_checkpoint
    from .candidate_features import require_kind
    from .cost_model import pretrained_cost_model, sheet_to_read
    from .scorer import check_update, resolve_update

    check_update(update)
    base = choose_checkpoint(checkpoint)
    if runs_on is not None:
        require_kind(base.checkpoint, runs_on.name, runs_on.kind)
    update = resolve_update(update, base.checkpoint.model)
    loaded = base.checkpoint
    if runs_on is not None:
        loaded = replace(loaded, device=sheet_to_read(loaded, runs_on))
    name = f"{loaded.config.name}@{loaded.config.version}"
    reasons = _with_threads(base.reasons or (), name, loaded.config.training.get("corpus"), threads)
    return ModelChoice(
        name, name, lambda: pretrained_cost_model(loaded, update, seed=seed), reasons, update, base.schedules
    )


def _with_threads(reasons: tuple[str, ...], name: str, corpus: Any, threads: int | None) -> tuple[str, ...]:
    """Add to the first reason that the checkpoint learnt from programs of another number of threads, where it did."""
    learnt = corpus.get("threads") if isinstance(corpus, dict) else None
    if learnt is None or threads is None or learnt == threads:
        return reasons
    one, other = (f"{count} thread{'s' if count > 1 else ''}" for count in (learnt, threads))
    reason = f"learnt from programs of {one}, these have {other}: `tchub adapt` teaches it the difference"
    return (f"{reasons[0]}; {reason}", *reasons[1:]) if reasons else (f"{name} {reason}",)


def _stock(seed: int) -> Any:
    import numpy as np
    from tvm.s_tir import meta_schedule as ms

    from ..device.host_facts import usable_cpus
    from .errors import TuningError

    try:
        import xgboost  # noqa: F401
    except ImportError:
        raise TuningError(
            "MetaSchedule's own cost model needs the package xgboost", remedy="pip install xgboost-cpu"
        ) from None
    np.random.seed(seed)  # its first 100 scores are drawn from NumPy's global generator
    return ms.cost_model.XGBModel(num_tuning_cores=usable_cpus(), tree_method="auto")


def _random(seed: int) -> Any:
    from tvm.s_tir import meta_schedule as ms

    return ms.cost_model.RandomModel(seed=seed)
