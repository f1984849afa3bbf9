"""The plug-in: a pretrained checkpoint as a MetaSchedule cost model.

`predict` reads the traces of the candidates as primitive sequences, so nothing is lowered and no feature
extractor runs; `update` may fine-tune the weights on what was measured (paper TCL section 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import PyCostModel
from tvm.s_tir.meta_schedule.utils import shash2hex

from ...zoo.primitives import from_trace
from .errors import ModelOutputError
from .online import OnlineLearner, OnlineSettings

if TYPE_CHECKING:
    from tvm.s_tir.meta_schedule.cost_model import CostModel
    from tvm.s_tir.meta_schedule.runner import RunnerResult
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    from ...zoo.models import Checkpoint
    from ...zoo.primitives import PrimitiveSequence

# A task's scores are centred on the first batch that holds this many programs (a search's first
# population has hundreds): fewer would make the centre and the spread a matter of luck.
CALIBRATION_SIZE = 16


@contextmanager
def _one_thread() -> Iterator[None]:
    """Score on one thread: the matrices are small, and the other cores may be measuring."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Squash:
    """A task's monotone map from raw scores to (0, 1).

    MetaSchedule clips scores at zero and draws parents in proportion to them; it also compares scores of
    different generations. So the map must be positive, not saturated where the candidates are, and the
    same from call to call: the centre and spread are fixed by the first large batch of a task.
    """

    def __init__(self) -> None:
        self._centre: float | None = None
        self._spread = 1.0

    def __call__(self, raw: np.ndarray) -> np.ndarray:
        """Map raw scores, shape (N,), any real, to (0, 1), shape (N,), order kept."""
        centre, spread = self._centre, self._spread
        if centre is None:
            centre, spread = float(np.mean(raw)), float(np.std(raw)) or 1.0
            if len(raw) >= CALIBRATION_SIZE:
                self._centre, self._spread = centre, spread
        z = (raw - centre) / spread
        return 0.5 * (1.0 + z / (1.0 + np.abs(z)))  # softsign: unlike a sigmoid, never rounds to 1.0


def check_update(update: str) -> None:
    """Raises ValueError unless `update` is one of the two."""
    if update not in ("none", "few-shot"):
        raise ValueError(f"update must be 'none' or 'few-shot', not {update!r}")


class PretrainedScorer:
    """Scores programs of many tasks with one checkpoint, and learns from measurements; knows no TVM.

    Args:
        checkpoint: the model, its feature schema and its device.
        update: `"none"` keeps the weights; `"few-shot"` fine-tunes them on what is measured.
        settings: of the fine-tuning.
    """

    def __init__(self, checkpoint: Checkpoint, update: str = "none", settings: OnlineSettings | None = None) -> None:
        check_update(update)
        self.update = update
        self.learner = OnlineLearner(checkpoint, settings or OnlineSettings())
        self._squash: dict[str, Squash] = {}

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint as it is now, fine-tuned or not."""
        return self.learner.checkpoint

    def predict(self, task: str, sequences: Sequence[PrimitiveSequence]) -> np.ndarray:
        """Scores in (0, 1), shape (N,), float64, higher is faster; comparable within one task.

        Raises:
            ModelOutputError: the model gave a number that is not finite.
        """
        if not sequences:
            return np.zeros(0, dtype=np.float64)
        with _one_thread():
            raw = np.asarray(self.checkpoint.score(sequences), dtype=np.float64)
        if raw.shape != (len(sequences),) or not np.isfinite(raw).all():
            raise ModelOutputError(
                f"{self.checkpoint.config.name} gave scores that are not finite numbers",
                remedy="verify the checkpoint's files with: tchub verify",
                checkpoint=self.checkpoint.config.name,
            )
        return self._squash.setdefault(task, Squash())(raw)

    def observe(self, task: str, sequences: Sequence[PrimitiveSequence], latencies: Sequence[float]) -> None:
        """Take measured latencies in seconds (NaN or infinite: it failed), and fine-tune if asked to."""
        self.learner.add(task, sequences, latencies)
        if self.update == "few-shot":
            with _one_thread():
                changed = self.learner.step()
            if changed:
                self._squash.clear()

    def save(self, path: Path) -> None:
        """Write weights and measurements to one safetensors file."""
        self.learner.save(path)

    def load(self, path: Path) -> None:
        """Take weights and measurements back from `save`'s file."""
        self.learner.load(path)
        self._squash.clear()


def seconds(result: RunnerResult) -> float:
    """A result's median run time in seconds; infinite where it failed."""
    if result.error_msg is not None or not result.run_secs:
        return float("inf")
    return float(np.median([float(s) for s in result.run_secs]))


@derived_object
class PretrainedCostModel(PyCostModel):
    """`PretrainedScorer` in the form that MetaSchedule calls."""

    def __init__(self, scorer: PretrainedScorer) -> None:
        super().__init__()
        self.scorer = scorer

    def predict(self, context: Any, candidates: list[MeasureCandidate]) -> np.ndarray:
        """Scores in (0, 1), shape (N,), float64."""
        return self.scorer.predict(shash2hex(context.mod), _read(candidates))

    def update(self, context: Any, candidates: list[MeasureCandidate], results: list[RunnerResult]) -> None:
        """Learn from a measured batch; failed programs are kept as failures."""
        if len(candidates):
            latencies = [seconds(result) for result in results]
            self.scorer.observe(shash2hex(context.mod), _read(candidates), latencies)

    def save(self, path: str) -> None:
        """Write the state to `path` (safetensors)."""
        self.scorer.save(Path(path))

    def load(self, path: str) -> None:
        """Read the state that `save` wrote."""
        self.scorer.load(Path(path))


def _read(candidates: Sequence[Any]) -> list[PrimitiveSequence]:
    return [from_trace(candidate.sch.trace) for candidate in candidates]


def tvm_cost_model(checkpoint: Checkpoint | str, update: str = "none", **settings: Any) -> CostModel:
    """A checkpoint as a MetaSchedule cost model, for `ms.tune_tir(..., cost_model=...)` and its kin.

    Args:
        checkpoint: a loaded checkpoint, or a name such as `tcl-epyc`.
        update: `"none"` keeps the weights; `"few-shot"` fine-tunes them on the measured programs.
        **settings: fields of `OnlineSettings`, for `"few-shot"`.

    Raises:
        ValueError: an unknown `update`.
    """
    if isinstance(checkpoint, str):
        from .. import load

        checkpoint = load(checkpoint)
    # `derived_object` makes it a TVM object, which a type checker cannot see.
    model: Any = PretrainedCostModel(PretrainedScorer(checkpoint, update, OnlineSettings(**settings)))
    return model
