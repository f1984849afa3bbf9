"""Measuring candidate programs on this machine: builds overlapped with runs, one failure costs one program."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from .errors import MeasurementFailureRateError, NoCompilerError
from .pool import JobResult, WorkerPool, Zygote
from .worker import TimingConfig, WorkerSetup

if TYPE_CHECKING:
    from ..tuning.candidates import Candidate


@dataclass(frozen=True)
class MeasureConfig:
    """How programs are built and run.

    Attributes:
        threads: threads of a program; the target's `num-cores` should say the same.
        build_timeout, run_timeout: seconds, after which the worker is killed.
        timing: repeats and when to stop.
        failure_rate: stop when more than this share of programs failed ...
        failure_minimum: ... after at least so many.
    """

    threads: int = 1
    build_timeout: float = 20.0
    run_timeout: float = 20.0
    timing: TimingConfig = field(default_factory=TimingConfig)
    failure_rate: float = 0.9
    failure_minimum: int = 16


@dataclass(frozen=True)
class Measurement:
    """What became of one candidate.

    Attributes:
        latencies: seconds a run, one entry a repeat; empty when it failed.
        error: None, `build`, `build_timeout`, `run`, `run_timeout` or `crash`.
        message: one line about the error.
        build_seconds, run_seconds: what the measurement cost.
        measured_at: unix time.
    """

    latencies: tuple[float, ...] = ()
    error: str | None = None
    message: str | None = None
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    measured_at: float = 0.0

    @property
    def latency(self) -> float:
        """Median of the repeats in seconds; NaN when the program failed."""
        return median(self.latencies) if self.latencies else float("nan")

    @property
    def cost_seconds(self) -> float:
        """Seconds of building and running."""
        return self.build_seconds + self.run_seconds


@dataclass
class _Job:
    candidate: Candidate
    library: Path
    started: float
    build_seconds: float = 0.0
    stage: str = "build"
    slot: int = field(default=0)


def cores() -> list[int]:
    """Cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def plan_workers(available: Sequence[int], threads: int, memory: int) -> tuple[list[WorkerSetup], WorkerSetup, bool]:
    """Builders, the runner, and whether builds may go on while a program is timed.

    With more cores than threads, the last `threads` cores time programs; each other core compiles, and the
    measuring cores compile as well while they idle (SCHED_IDLE yields to the timed program at once). With no core
    to spare, a batch is built first and timed after.
    """
    overlap = len(available) > threads
    runner = WorkerSetup(tuple(available[-threads:]), urgent=overlap, threads=threads, memory_bytes=memory)
    builders = [
        WorkerSetup((core,), idle=overlap and core in available[-threads:], memory_bytes=memory) for core in available
    ]
    return builders, runner, overlap


def check_compiler() -> None:
    """Raises NoCompilerError when no C compiler can link what TVM builds."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++", "gcc", "cc")):
        raise NoCompilerError(
            "no C compiler was found, and TVM needs one to link programs",
            remedy="install gcc or clang (Debian: apt-get install g++), or set CXX",
        )


class Measurer:
    """Measures candidates on this machine. Use as a context manager: it owns processes and a scratch folder.

    Args:
        target: TVM target as a dictionary.
        config: time-outs, repeats, threads.
    """

    def __init__(self, target: dict[str, Any], config: MeasureConfig | None = None) -> None:
        check_compiler()
        self.target = target
        self.config = config or MeasureConfig()
        memory = psutil.virtual_memory().total
        builders, runner, self._overlap = plan_workers(cores(), self.config.threads, memory)
        self._scratch = Path(tempfile.mkdtemp(prefix="tchub-measure-"))
        self._zygote = Zygote()
        self._builders = WorkerPool(self._zygote, builders)
        self._runner = WorkerPool(self._zygote, [runner])
        self._window = 4 * len(builders)
        self._best: dict[str, float] = {}
        self._serial = 0
        self.outcomes: Counter[str] = Counter()
        self._messages: Counter[str] = Counter()

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and remove the scratch folder."""
        self._builders.close()
        self._runner.close()
        self._zygote.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def know(self, task_id: str, latency: float) -> None:
        """Tell the latency of a program measured earlier, so that clearly slower ones stop early."""
        self._best[task_id] = min(latency, self._best.get(task_id, float("inf")))

    def measure(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Measurement]]:
        """Measure candidates; yields each with its measurement as soon as it is known.

        Raises:
            MeasurementFailureRateError: nearly every program failed; what was measured was yielded before.
        """
        if self._overlap:
            yield from self._pipeline(iter(candidates))
        else:
            yield from self._phases(iter(candidates))

    def _pipeline(self, waiting: Iterator[Candidate]) -> Iterator[tuple[Candidate, Measurement]]:
        """Builds and runs overlap."""
        active: dict[Future[JobResult], _Job] = {}
        exhausted = False
        while True:
            while not exhausted and len(active) < self._window:
                candidate = next(waiting, None)
                if candidate is None:
                    exhausted = True
                    break
                self._start_build(candidate, active)
            if not active:
                return
            done, _ = wait(active, return_when=FIRST_COMPLETED)
            for future in done:
                job = active.pop(future)
                finished = self._advance(job, future.result(), active)
                if finished is not None:
                    yield job.candidate, self._count(finished)

    def _phases(self, waiting: Iterator[Candidate]) -> Iterator[tuple[Candidate, Measurement]]:
        """A batch is built on all cores, then timed on all cores."""
        while batch := [c for _, c in zip(range(self._window), waiting, strict=False)]:
            building: dict[Future[JobResult], _Job] = {}
            for candidate in batch:
                self._start_build(candidate, building)
            wait(building)
            for future, job in building.items():
                running: dict[Future[JobResult], _Job] = {}
                finished = self._advance(job, future.result(), running)
                while finished is None:
                    ((run, _),) = running.items()
                    finished = self._advance(job, run.result(), {})
                yield job.candidate, self._count(finished)

    def _start_build(self, candidate: Candidate, active: dict[Future[JobResult], _Job]) -> None:
        import tvm

        self._serial += 1
        library = self._scratch / f"{self._serial}.so"
        args = (tvm.ir.save_json(candidate.mod), self.target, str(library))
        job = _Job(candidate, library, time.perf_counter())
        active[self._builders.submit("build", args, self.config.build_timeout)] = job

    def _advance(self, job: _Job, result: JobResult, active: dict[Future[JobResult], _Job]) -> Measurement | None:
        """Take a job's result; start its run after its build, or return the measurement when it ended."""
        if result.error is not None:
            job.library.unlink(missing_ok=True)
            error = {"exception": job.stage, "timeout": f"{job.stage}_timeout", "crash": "crash"}[result.error]
            return Measurement((), error, result.message, job.build_seconds, measured_at=time.time())
        if job.stage == "build":
            job.build_seconds, job.stage = float(result.value), "run"
            candidate = job.candidate
            args = (
                str(job.library),
                candidate.args_info,
                self.config.timing,
                self._best.get(candidate.task_id),
            )
            job.started = time.perf_counter()
            active[self._runner.submit("run", args, self.config.run_timeout)] = job
            return None
        job.library.unlink(missing_ok=True)
        latencies, seconds = result.value
        measurement = Measurement(tuple(latencies), None, None, job.build_seconds, seconds, time.time())
        self.know(job.candidate.task_id, measurement.latency)
        return measurement

    def _count(self, measurement: Measurement) -> Measurement:
        self.outcomes[measurement.error or "ok"] += 1
        if measurement.error:
            self._messages[f"{measurement.error}: {measurement.message}"] += 1
        total, failed = self.outcomes.total(), self.outcomes.total() - self.outcomes["ok"]
        if total >= self.config.failure_minimum and failed > self.config.failure_rate * total:
            ((message, count),) = self._messages.most_common(1)
            raise MeasurementFailureRateError(
                f"{failed} of {total} programs failed, {count} of them with: {message}",
                remedy="run `tchub doctor`; a busy machine needs longer time-outs",
                failed=failed,
                total=total,
                commonest=message,
            )
        return measurement
