"""tchub's workers as MetaSchedule `Builder` and `Runner` objects, which stock `tune_tir` takes as they are."""

import json
import shutil
import tempfile
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult

from ...zoo.tvm_import import import_tensor_intrinsics
from .build_jobs import BuildResult
from .candidate import args_of
from .cuda_card import CUDA
from .cuda_measure import CudaMeasurer
from .measure import MeasureConfig, Measurer
from .pool import JobResult


@derived_object
class ForkedBuilder(PyBuilder):
    """Compiles candidates in forked workers, one program a job."""

    def __init__(self, workers: Measurer) -> None:
        super().__init__()
        self.workers = workers
        self.built: dict[str, BuildResult] = {}

    def build(self, build_inputs: list[Any]) -> list[Any]:
        """Build all inputs; a failure costs its own program."""
        jobs = []
        for item in build_inputs:
            # MetaSchedule removes an artifact's whole folder, so each gets its own.
            library = Path(tempfile.mkdtemp(dir=self.workers.scratch)) / "program.so"
            target = json.loads(str(item.target))
            jobs.append((library, self.workers.build(item.mod, library, target, self.workers.linker)))
        results = []
        for library, result in ((library, future.result()) for library, future in jobs):
            if result.error is None:
                self.built[str(library)] = result.value
                results.append(BuilderResult(str(library), None))
            else:
                shutil.rmtree(library.parent, ignore_errors=True)
                results.append(BuilderResult(None, f"build {result.error}: {result.message}"))
        return results


@derived_object
class ForkedRunnerFuture(PyRunnerFuture):
    """The latencies of one program, when they are known."""

    def __init__(self, future: Future[JobResult], best: dict[Any, float], key: Any) -> None:
        super().__init__()
        self.future, self.best, self.key = future, best, key

    def done(self) -> bool:
        """Return whether `result` would return at once."""
        return self.future.done()

    def result(self) -> Any:
        """Latencies in seconds, or the error; waits."""
        result = self.future.result()
        if result.error is not None:
            return RunnerResult(None, f"run {result.error}: {result.message}")
        outcome = result.value
        if not outcome.disturbed:
            self.best[self.key] = min(self.best.get(self.key, inf), median(outcome.latencies))
        return RunnerResult([float(x) for x in outcome.latencies], None)


@derived_object
class ForkedRunner(PyRunner):
    """Times programs one after another on the measuring cores.

    A program that is clearly slower than the best one with the same argument shapes gets one repeat only. Outputs are
    not checked: a runner does not get the task's unscheduled program.
    """

    def __init__(self, workers: Measurer, built: dict[str, BuildResult]) -> None:
        super().__init__()
        self.workers = workers
        self.built = built  # by the builder beside it
        self.best: dict[Any, float] = {}

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        """Start all inputs; without a core to spare, waits for them, lest the next build disturb the timing."""
        futures, config = [], self.workers.config
        for item in runner_inputs:
            key = args_of(item.args_info)
            path, best = str(item.artifact_path), self.best.get(key)
            future = self.workers.submit_run(path, key, config.timing, best, None, self.built.pop(path, BuildResult()))
            futures.append(ForkedRunnerFuture(future, self.best, key))
            if not self.workers.overlaps:
                wait([future])
        return futures


class BuilderRunner(AbstractContextManager["BuilderRunner"]):
    """A builder, a runner and the processes behind them, on this machine. Use as a context manager.

    Args:
        card: number of the NVIDIA card that runs programs; None for the CPU.

    Attributes:
        builder, runner: for `tune_tir(..., builder=..., runner=...)` or `tune_tasks`.

    Raises:
        DeviceError: no C compiler to link with, or the card cannot be used.
    """

    def __init__(self, config: MeasureConfig | None = None, card: int | None = None) -> None:
        import_tensor_intrinsics()  # before `tune_tir` does it slowly
        self._workers = Measurer({}, config) if card is None else CudaMeasurer(card, {"kind": CUDA}, config)
        self.builder: Any = ForkedBuilder(self._workers)
        self.runner: Any = ForkedRunner(self._workers, self.builder.built)
        self.wait = self._workers.wait  # until the first program can be built; the builder waits by itself
        self.close = self._workers.close  # end the processes and remove what they built

    def __exit__(self, *_: object) -> None:
        self.close()
