"""tchub's workers as MetaSchedule `Builder` and `Runner` objects, which stock `tune_tir` takes as they are."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult

from .host_facts import physical_cores
from .measurement import MeasureConfig
from .pool import JobResult, WorkerPool, Zygote, check_compiler, cores, plan_workers


@derived_object
class ForkedBuilder(PyBuilder):
    """Compiles candidates in forked workers, one program a job."""

    def __init__(self, pool: WorkerPool, config: MeasureConfig, scratch: Path) -> None:
        super().__init__()
        self.pool = pool
        self.config = config
        self.scratch = scratch

    def build(self, build_inputs: list[Any]) -> list[Any]:
        """Build all inputs; a failure costs its own program."""
        jobs = []
        for item in build_inputs:
            # MetaSchedule removes an artifact's whole folder, so each gets its own.
            library = Path(tempfile.mkdtemp(dir=self.scratch)) / "program.so"
            target = json.loads(str(item.target))
            args = (tvm.ir.save_json(item.mod), target, str(library))
            jobs.append((library, self.pool.submit("build", args, self.config.build_timeout)))
        return [self._result(library, future.result()) for library, future in jobs]

    @staticmethod
    def _result(library: Path, result: JobResult) -> Any:
        if result.error is None:
            return BuilderResult(str(library), None)
        shutil.rmtree(library.parent, ignore_errors=True)
        return BuilderResult(None, f"build {result.error}: {result.message}")


@derived_object
class ForkedRunnerFuture(PyRunnerFuture):
    """The latencies of one program, when they are known."""

    def __init__(self, future: Future[JobResult], note: Any) -> None:
        super().__init__()
        self.future = future
        self.note = note

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
            self.note(outcome.latencies)
        return RunnerResult([float(x) for x in outcome.latencies], None)


@derived_object
class ForkedRunner(PyRunner):
    """Times programs one after another on the measuring cores.

    A program that is clearly slower than the best one with the same argument shapes gets one repeat only. Outputs are
    not checked: a runner is not told the task's unscheduled program.
    """

    def __init__(self, pool: WorkerPool, config: MeasureConfig, overlap: bool) -> None:
        super().__init__()
        self.pool = pool
        self.config = config
        self.overlap = overlap
        self.best: dict[str, float] = {}

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        """Start all inputs; without a core to spare, waits for them, lest the next build disturb the timing."""
        futures = []
        for item in runner_inputs:
            infos = [info.as_json() for info in item.args_info]
            args_info = [([int(d) for d in info[2]], str(info[1])) for info in infos]
            key = json.dumps(args_info)
            args = (str(item.artifact_path), args_info, self.config.timing, self.best.get(key), self.config.drift)
            future = self.pool.submit("run", args, self.config.run_timeout)
            futures.append(ForkedRunnerFuture(future, self._noter(key)))
            if not self.overlap:
                wait([future])
        return futures

    def _noter(self, key: str) -> Any:
        def note(latencies: Sequence[float]) -> None:
            self.best[key] = min(self.best.get(key, float("inf")), median(latencies))

        return note


@dataclass
class BuilderRunner:
    """A builder, a runner and the processes behind them. Use as a context manager.

    Attributes:
        builder, runner: for `tune_tir(..., builder=..., runner=...)` or `tune_tasks`.
    """

    builder: Any
    runner: Any
    _pools: tuple[WorkerPool, WorkerPool]
    _zygote: Zygote
    _scratch: Path

    def __enter__(self) -> BuilderRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until the first program can be built; the builder waits by itself."""
        self._zygote.wait()

    def close(self) -> None:
        """End the processes and remove what they built."""
        for pool in self._pools:
            pool.close()
        self._zygote.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def make_builder_runner(config: MeasureConfig | None = None) -> BuilderRunner:
    """Forked workers for MetaSchedule on this machine's CPU.

    Raises:
        DeviceError: no C compiler to link with.
    """
    check_compiler()
    config = config or MeasureConfig()
    builders, runner, overlap = plan_workers(physical_cores(cores()), config.threads, psutil.virtual_memory().total)
    zygote = Zygote()
    scratch = Path(tempfile.mkdtemp(prefix="tchub-measure-"))
    pools = (WorkerPool(zygote, builders), WorkerPool(zygote, [runner]))
    return BuilderRunner(
        ForkedBuilder(pools[0], config, scratch),
        ForkedRunner(pools[1], config, overlap),
        pools,
        zygote,
        scratch,
    )
