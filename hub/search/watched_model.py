"""A cost model that is watched: timed, stopped when the user asks, and asked about decisions where it can read them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import PyCostModel
from tvm.s_tir.meta_schedule.utils import shash2hex

from ...zoo.features import get_schema
from .candidate_features import skeleton
from .interrupt import StopFlag

if TYPE_CHECKING:
    from ...zoo.primitives.metaschedule import Template
    from ...zoo.primitives.scope import Decision


@derived_object
class WatchedCostModel(PyCostModel):
    """Passes everything on to another cost model, times it, and stops the search when the user asks."""

    def __init__(self, inner: Any, stop: StopFlag) -> None:
        super().__init__()
        self.inner = inner
        self.stop = stop
        self.seconds = 0.0
        self.scored = 0

    @property
    def reads_decisions(self) -> bool:
        """Whether the inner model is a checkpoint to which decisions say all."""
        scorer = getattr(self.inner, "scorer", None)
        return scorer is not None and get_schema(scorer.checkpoint.config.feature_schema).source != "statements"

    def features_of(self, template: Template, decisions: Sequence[Sequence[Decision]]) -> np.ndarray:
        """What a checkpoint reads of programs of a design space, float32 (N, rows, width)."""
        start = time.perf_counter()
        checkpoint = self.inner.scorer.checkpoint
        schema = get_schema(checkpoint.config.feature_schema)
        found = skeleton(template, schema, checkpoint.device if schema.hardware else None).features(decisions)
        self.seconds += time.perf_counter() - start
        return found

    def score(self, context: Any, features: np.ndarray) -> np.ndarray:
        """A checkpoint's scores (N,) of programs of one task by their features; higher is faster."""
        start = time.perf_counter()
        scores = self.inner.scorer.predict(shash2hex(context.mod), features)
        self.seconds += time.perf_counter() - start
        self.scored += len(features)
        return scores

    def observe(self, context: Any, features: np.ndarray, latencies: Sequence[float]) -> None:
        """Show a checkpoint measured programs of one task; latencies in seconds, infinite where they failed."""
        start = time.perf_counter()
        self.inner.scorer.observe(shash2hex(context.mod), features, latencies)
        self.seconds += time.perf_counter() - start

    def predict(self, context: Any, candidates: list[Any]) -> np.ndarray:
        """The inner model's scores."""
        if self.stop.requested:  # TVM passes this on as a RuntimeError; `TaskSearch` knows what it means
            raise RuntimeError("stop requested")
        start = time.perf_counter()
        try:
            return self.inner.predict(context, candidates)
        finally:
            self.seconds += time.perf_counter() - start
            self.scored += len(candidates)

    def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
        """Let the inner model learn."""
        start = time.perf_counter()
        self.inner.update(context, candidates, results)
        self.seconds += time.perf_counter() - start

    @property
    def unread(self) -> int:
        """Programs that a checkpoint could not be shown, because TVM could not lower them; 0 for other models."""
        return getattr(getattr(self.inner, "scorer", None), "unread", 0)

    def save(self, path: str) -> None:
        """Save the inner model."""
        self.inner.save(path)

    def load(self, path: str) -> None:
        """Load the inner model."""
        self.inner.load(path)
