"""The plug-in: a pretrained checkpoint as a MetaSchedule cost model, and the model of a tuning run.

`predict` makes the checkpoint's features (see `candidate_features`): for models of primitives nothing is lowered.
`update` may hand the measured programs to the model as context, or fine-tune the weights on them (TCL, section 4).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import CostModel, PyCostModel, RandomModel, XGBModel
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
from tvm.s_tir.meta_schedule.utils import shash2hex

from ...zoo.corpus.tir import operator_class
from ...zoo.devices import known_device
from ...zoo.features import get_schema
from ...zoo.machine import one_thread
from ...zoo.primitives.metaschedule import Template
from ...zoo.primitives.scope import Decision
from ...zoo.tvm_import import import_tensor_intrinsics
from ..device.host_facts import usable_cpus
from .candidate_features import candidate_features, require_kind, skeleton
from .interrupt import StopFlag
from .scorer import OnlineSettings, PretrainedScorer, check_update, resolve_update

if TYPE_CHECKING:
    from ...zoo.devices import Device
    from ...zoo.models import Checkpoint


def seconds(result: RunnerResult) -> float:
    """Return a result's median run time in seconds; infinite where it failed."""
    if result.error_msg is not None or not result.run_secs:
        return float("inf")
    return float(np.median([float(s) for s in result.run_secs]))


@derived_object
class PretrainedCostModel(PyCostModel):
    """`PretrainedScorer` in the form that MetaSchedule calls.

    Where the context's target is of the other kind of device, `predict` and `update` raise DeviceKindError, which TVM
    hands on as a RuntimeError with its message.
    """

    def __init__(self, scorer: PretrainedScorer) -> None:
        super().__init__()
        self.scorer = scorer
        self._named: set[str] = set()

    def predict(self, context: Any, candidates: list[MeasureCandidate]) -> np.ndarray:
        """Scores in [0, 1), shape (N,), float64."""
        return self.scorer.predict(self._task(context.mod), *self._read(context, candidates))

    def update(self, context: Any, candidates: list[MeasureCandidate], results: list[RunnerResult]) -> None:
        """Learn from a measured batch; failed programs are kept as failures."""
        if len(candidates):
            features, usable = self._read(context, candidates)
            latencies = [seconds(result) for result, good in zip(results, usable, strict=True) if good]
            self.scorer.observe(self._task(context.mod), features, latencies)

    # For a search over decisions -------------------------------------------------------------------------

    @property
    def reads_decisions(self) -> bool:
        """True for a checkpoint whose features follow from the decisions of a schedule alone."""
        return get_schema(self.scorer.checkpoint.config.feature_schema).source != "statements"

    def features_of(self, template: Template, decisions: Sequence[Sequence[Decision]]) -> np.ndarray:
        """Return the features of programs of a design space, float32 (N, rows, width)."""
        checkpoint = self.scorer.checkpoint
        schema = get_schema(checkpoint.config.feature_schema)
        return skeleton(template, schema, checkpoint.device if schema.hardware else None).features(decisions)

    def score(self, mod: Any, features: np.ndarray) -> np.ndarray:
        """Return the scores (N,) of programs of one task by their features; higher is faster."""
        return self.scorer.predict(self._task(mod), features)

    def intensity(self, template: Template, decisions: Sequence[Sequence[Decision]]) -> np.ndarray | None:
        """Return the operations a byte of programs (N,) by the core-bound and memory-bound scores of a `Fasor`.

        None for any other model, and for a device without a roofline.
        """
        from ...zoo.models.fasor import LEAST_SHARE, Fasor

        checkpoint = self.scorer.checkpoint
        roofline = checkpoint.device.roofline()
        if roofline is None or not isinstance(checkpoint.model, Fasor):
            return None
        with one_thread():
            bounds = checkpoint.model.bounds(self.features_of(template, decisions))
        flops, bandwidth = roofline
        return bounds[:, 1] / np.maximum(bounds[:, 0], LEAST_SHARE) * flops / bandwidth

    def observe(self, mod: Any, features: np.ndarray, latencies: Sequence[float]) -> None:
        """Learn from measured programs of one task; latencies in seconds, infinite where they failed."""
        self.scorer.observe(self._task(mod), features, latencies)

    def _task(self, mod: Any) -> str:
        """Return the name of a task; its operator class decides whether the checkpoint's scores count for it."""
        task, config = shash2hex(mod), self.scorer.checkpoint.config
        if task not in self._named:
            self._named.add(task)
            if config.trust and not config.trusts("metaschedule", operator_class(mod)):
                self.scorer.untrusted.add(task)
        return task

    def _read(self, context: Any, candidates: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        target = context.target
        kind = "gpu" if "gpu" in target.keys else "cpu"
        require_kind(self.scorer.checkpoint, f"the target {target.kind.name}", kind)
        return candidate_features(self.scorer.checkpoint, context, candidates)


@derived_object
class SessionCostModel(PyCostModel):
    """A cost model under a tuning session: timed, and stopped when the user asks.

    Args:
        inner: any MetaSchedule cost model; one of a checkpoint serves a search over decisions, too, by its methods
            `features_of`, `score`, `intensity` and `observe`, which this one then has as well.
        stop: asks the search to end.

    Attributes:
        seconds: spent in the inner model.
    """

    def __init__(self, inner: Any, stop: StopFlag) -> None:
        super().__init__()
        self.inner = inner
        self.stop = stop
        self.seconds = 0.0
        for name in ("features_of", "score", "intensity", "observe"):
            if hasattr(inner, name):
                setattr(self, name, partial(self._timed, getattr(inner, name)))

    @property
    def reads_decisions(self) -> bool:
        """True for a checkpoint whose features follow from the decisions of a schedule alone."""
        return hasattr(self.inner, "scorer") and self.inner.reads_decisions

    @property
    def unread(self) -> int:
        """Programs of which no features could be made, because TVM could not lower them; 0 for other models."""
        return self.inner.scorer.unread if hasattr(self.inner, "scorer") else 0

    def predict(self, context: Any, candidates: list[Any]) -> np.ndarray:
        """Return the inner model's scores."""
        if self.stop.requested:  # TVM passes this on as a RuntimeError; `TaskSearch` knows what it means
            raise RuntimeError("stop requested")
        return self._timed(self.inner.predict, context, candidates)

    def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
        """Let the inner model learn."""
        self._timed(self.inner.update, context, candidates, results)

    def _timed(self, method: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*args)
        finally:
            self.seconds += time.perf_counter() - start


def sheet_to_read(checkpoint: Checkpoint, runs_on: Device) -> Device:
    """Return the device by whose spec sheet a checkpoint reads programs that another device runs.

    A model that notes the devices it has learnt (`TileNetConfig.device_dropout`) tells them apart, and reads one that
    it has not met without it. It gets the sheet that goes by the device's name, by which it has learnt: what detection
    measured, two cores of a cloud's machine say, would make a stranger of it; with the vectors of `runs_on`, which are
    shorter where programs are for another target than the device could run: a stranger, unless the model has learnt
    such programs of the device. Other models keep to their own device.
    """
    if getattr(checkpoint.model, "devices", None) is None:
        return checkpoint.device
    learnt = checkpoint.device if runs_on.name == checkpoint.device.name else known_device(runs_on.name) or runs_on
    width = runs_on.spec.values().get("simd_bytes")
    if width in (None, learnt.spec.values().get("simd_bytes")):
        return learnt
    return replace(learnt, spec=learnt.spec.with_values({"simd_bytes": width}, "the target's"))


def tvm_cost_model(checkpoint: Checkpoint | str, update: str = "auto", **settings: Any) -> CostModel:
    """Return a checkpoint as a MetaSchedule cost model, for `ms.tune_tir(..., cost_model=...)` and its kin.

    Args:
        checkpoint: a name such as `tcl-epyc`, to search programs that this machine runs; or a loaded checkpoint, which
            reads programs by the spec sheet of its own `device`.
        update: how it learns from the measured programs, see `PretrainedScorer`.
        **settings: fields of `OnlineSettings`, for `"few-shot"`.

    Raises:
        ValueError: an unknown `update`.
        TrainingError: the model cannot learn that way.
    """
    if isinstance(checkpoint, str):
        from ..api import load
        from ..device.detect import detect_local

        checkpoint, here = load(checkpoint), detect_local().device
        if here.kind == checkpoint.device.kind:
            checkpoint = replace(checkpoint, device=sheet_to_read(checkpoint, here))
    # Before `tune_tir` does it slowly; all, for its user may go on to a card.
    import_tensor_intrinsics()
    return pretrained_cost_model(checkpoint, update, **settings)


def pretrained_cost_model(checkpoint: Checkpoint, update: str = "auto", **settings: Any) -> CostModel:
    """Return what `tvm_cost_model` does, where TVM's tensor intrinsics of the target are imported elsewhere."""
    # `derived_object` makes it a TVM object, which a type checker cannot see.
    model: Any = PretrainedCostModel(PretrainedScorer(checkpoint, update, OnlineSettings(**settings)))
    return model


# The model of a tuning run -------------------------------------------------------------------------------


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
        update: how a checkpoint learns while tuning, see `PretrainedScorer`.
        runs_on: the device that the programs are for, where it is known, see `sheet_to_read`; threads: of them,
            where they are.

    Raises:
        ValueError: an unknown `update`.
        DeviceKindError: the checkpoint is for the other kind of device.
        TchubError: the model cannot learn that way, or whatever the registry raises.
    """
    if checkpoint == "stock":
        return ModelChoice("stock", "MetaSchedule's own model (XGBoost)", lambda: _stock(seed))
    if checkpoint == "none":
        return ModelChoice("none", "no model (random choice)", lambda: RandomModel(seed=seed))
    from ..api import choose_checkpoint

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
    np.random.seed(seed)  # its first 100 scores are drawn from NumPy's global generator
    return XGBModel(num_tuning_cores=usable_cpus(), tree_method="auto")
