"""Measuring candidate programs: built here, run on this machine; one failure costs one program."""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from .build_jobs import BuildResult, build
from .candidate import Candidate, args_of
from .cubin_cache import CubinCache
from .errors import check_failure_rate
from .host_facts import cores, physical_cores
from .jobs import RunResult, make_reference, run
from .onsite.runs import TimingConfig
from .pool import JobResult, WorkerPool, Zygote, plan_workers, real_time_granted, require_compiler
from .worker import WorkerSetup

if TYPE_CHECKING:
    from tvm import IRModule

# For the unscheduled program of a task, whose outputs those of others are compared with.
_CHECK_SECONDS = 5.0


@dataclass(frozen=True)
class MeasureConfig:
    """Settings of building and running programs.

    Attributes:
        threads: of a program; the target's `num-cores` should say the same.
        build_timeout, run_timeout: seconds after which the worker is killed; only those count in which it had a core.
        timing: repeats and when to stop.
    """

    threads: int = 1
    build_timeout: float = 20.0
    run_timeout: float = 20.0
    timing: TimingConfig = field(default_factory=TimingConfig)


@dataclass(frozen=True)
class Measurement:
    """Result of one candidate.

    Attributes:
        latencies: seconds a run, one entry a repeat; empty when it failed.
        error: None, `build`, `build_timeout`, `run`, `run_timeout`, `crash` or `wrong_output`.
        measured_at: unix time.
        disturbed: whether the machine was still disturbed when it was last measured again.
    """

    latencies: tuple[float, ...] = ()
    error: str | None = None
    message: str | None = None
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    measured_at: float = 0.0
    disturbed: bool = False

    @property
    def latency(self) -> float:
        """Median of the repeats in seconds; NaN when the program failed."""
        return median(self.latencies) if self.latencies else float("nan")

    @property
    def cost_seconds(self) -> float:
        """Seconds of building and running."""
        return self.build_seconds + self.run_seconds


# Failures of the moment: a busy machine, a full memory or disk, a server that does not load what it is sent.
_TRANSIENT = ("build_timeout", "run_timeout", "crash")
_OF_THE_MACHINE = ("OSError", "MemoryError", "CalledProcessError", "No space left", "cannot load the program")


def is_passing(failure: str) -> bool:
    """Return whether a program may do well another time, by how it failed: `KIND: MESSAGE`."""
    text = failure.removeprefix("run: ")  # the form in which the store keeps error and message
    return text.startswith(_TRANSIENT) or any(word in text for word in _OF_THE_MACHINE)


@dataclass
class MeasuringJob:
    """A candidate that is built into a library, then run."""

    candidate: Candidate
    library: Path
    built: BuildResult = field(default=BuildResult())
    stage: str = "build"


class ProgramMeasurer(AbstractContextManager[Any]):
    """Builds candidates in workers and runs them. A context manager: it owns processes and a scratch folder.

    Args:
        remedy: for a user nearly all of whose programs fail.

    Attributes:
        overlaps: whether programs are built while others are timed; else this process should rest meanwhile.
        preempts: whether a timed program gets a core of its own at once, whatever else this process does.
        outcomes: count of programs by outcome: `ok`, or `Measurement.error`.
        watched: `checked` outputs; timings `repeated` because the machine was disturbed; programs `disturbed` to the
            end.
    """

    overlaps = preempts = True
    linker: str | None = None
    cubins: CubinCache | None = None

    def __init__(self, target: dict[str, Any], config: MeasureConfig, builders: list[WorkerSetup], remedy: str) -> None:
        self.target, self.config = target, config
        self.scratch = Path(tempfile.mkdtemp(prefix="tchub-measure-"))
        self._zygote = Zygote()
        self.builders = WorkerPool(self._zygote, builders)
        self._at_once = 4 * len(builders)
        self._best: dict[str, float] = {}
        self._serial = count()
        self._remedy = remedy
        self._failures: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.watched: Counter[str] = Counter()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and remove the scratch folder."""
        self.builders.close()
        self._zygote.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def wait(self) -> None:
        """Wait until the first program can be built: TVM is imported in the background. `measure` waits by itself."""
        self._zygote.wait()

    def know(self, task_id: str, latency: float) -> None:
        """Tell the latency of a program measured earlier, so that clearly slower ones stop early."""
        self._best[task_id] = min(latency, self._best.get(task_id, float("inf")))

    def window(self) -> int:
        """Return how many programs are in hand at once."""
        return self._at_once

    def measure(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Measurement]]:
        """Measure candidates; yield each with its measurement as soon as it is known.

        Raises:
            MeasurementFailureRateError: nearly every program failed; what was measured was yielded before.
        """
        waiting = iter(candidates)
        active: dict[Future[JobResult], MeasuringJob] = {}
        built: list[MeasuringJob] = []
        while True:
            while built and (self.overlaps or not active):
                job = built.pop(0)
                active[self._start_run(job)] = job
            # Where builds would disturb the timing a batch is built first, and its programs run one after the other.
            before = len(active)
            if self.overlaps or not (active or built):
                # One at a time where programs are run meanwhile, as what makes the next may take a while.
                room = max(0, self.window() - before)
                for candidate in islice(waiting, min(room, 1) if self.overlaps else room):
                    job = MeasuringJob(candidate, self.scratch / f"{next(self._serial)}.so")
                    active[self.build(candidate.mod, job.library, self.target, self.linker)] = job
            if not active:
                return
            patience = 0 if self.overlaps and len(active) > before else None
            done, _ = wait(active, timeout=patience, return_when=FIRST_COMPLETED)
            for future in done:
                job, result = active.pop(future), future.result()
                if result.error is None and job.stage == "build":
                    job.built, job.stage = result.value, "run"
                    built.append(job)
                else:
                    measurement = self._measurement(job, result)
                    self.outcomes[measurement.error or "ok"] += 1
                    if measurement.error:
                        self._failures.append(f"{measurement.error}: {measurement.message}")
                    check_failure_rate(self._failures, self.outcomes.total(), self._remedy)
                    yield job.candidate, measurement

    def build(self, mod: IRModule, library: Path, target: dict[str, Any], linker: str | None) -> Future[JobResult]:
        """Queue the job `build` of a scheduled module."""
        import tvm

        args = (tvm.ir.save_json(mod), target, str(library), linker, "cubin", self.cubins)
        return self.builders.submit(build, args, self.config.build_timeout)

    @abstractmethod
    def _start_run(self, job: MeasuringJob) -> Future[JobResult]:
        """Run a built program; the value is a `RunResult`."""

    def _measurement(self, job: MeasuringJob, result: JobResult) -> Measurement:
        job.library.unlink(missing_ok=True)
        if result.error is not None:
            return Measurement(
                (), result.failure(job.stage), result.message, job.built.seconds, measured_at=time.time()
            )
        outcome: RunResult = result.value
        costs = job.built.seconds, outcome.seconds, time.time()
        if outcome.wrong is not None:
            return Measurement((), "wrong_output", outcome.wrong, *costs)
        self.watched["repeated"] += outcome.repeated
        self.watched["disturbed"] += outcome.disturbed
        measurement = Measurement(tuple(outcome.latencies), None, None, *costs, outcome.disturbed)
        if not outcome.disturbed:
            self.know(job.candidate.task_id, measurement.latency)
        return measurement


class Measurer(ProgramMeasurer):
    """Measures candidates on this machine; see `ProgramMeasurer`.

    Attributes:
        unchecked: tasks whose outputs cannot be checked, with the reason.
    """

    def __init__(self, target: dict[str, Any], config: MeasureConfig | None = None) -> None:
        require_compiler()
        config = config or MeasureConfig()
        memory = psutil.virtual_memory().total
        physical = physical_cores(cores())
        builders, runner, self.overlaps = plan_workers(physical, config.threads, memory)
        alone = all(len(core) == 1 for core in physical)  # no second thread of the core that times
        self.preempts = not self.overlaps or (alone and real_time_granted())
        super().__init__(target, config, builders, "run `tchub doctor`; a busy machine needs longer time-outs")
        self.runner = WorkerPool(self._zygote, [runner])
        self._threads = ThreadPoolExecutor(thread_name_prefix="tchub-reference")
        self._references: dict[str, Future[tuple[Any, str] | None]] = {}
        self.unchecked: dict[str, str] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.runner.close()
        super().close()

    def refer(self, task_id: str, mod: IRModule) -> Future[Any]:
        """Compare outputs of a task's programs with what its unscheduled module computes, once that is done.

        A task whose unscheduled program fails, or computes for longer than `_CHECK_SECONDS`, goes unchecked.
        """
        if task_id not in self._references:
            self._references[task_id] = self._threads.submit(self._make_reference, task_id, mod)
        return self._references[task_id]

    def _make_reference(self, task_id: str, mod: IRModule) -> tuple[Any, str] | None:
        """Return the arguments of a task and the file of its right outputs, None where it cannot be checked."""
        from tvm.s_tir.meta_schedule.arg_info import ArgInfo

        library, file = self.scratch / f"reference-{task_id}.so", str(self.scratch / f"reference-{task_id}.npz")
        args = args_of(ArgInfo.from_entry_func(mod, remove_preproc=False))
        target = self.target if self.target["kind"] == "llvm" else {"kind": "llvm"}
        result = self.build(mod, library, target, None).result()
        if result.error is None:
            job = (str(library), result.value.sha256, args, file)
            result = self.runner.submit(make_reference, job, _CHECK_SECONDS).result()
            library.unlink(missing_ok=True)
        if result.error is not None:
            self.unchecked[task_id] = f"{result.error}: {result.message}"
        return (args, file) if result.error is None and result.value else None

    def _reference(self, job: MeasuringJob) -> tuple[Any, str] | None:
        """Return the task's arguments and outputs to compare with; None where it cannot be checked, or not yet."""
        future = self._references.get(job.candidate.task_id)
        done = future is not None and future.done() and not future.cancelled()
        reference = future.result() if future is not None and done else None
        if reference is None:
            return None
        pairs = enumerate(zip(reference[0], job.candidate.args_info, strict=False))
        alike = all(task == program for i, (task, program) in pairs if i not in job.built.prepacked)
        return reference if alike and len(reference[0]) == len(job.candidate.args_info) else None

    def _start_run(self, job: MeasuringJob) -> Future[JobResult]:
        if not self.overlaps:  # what builds references would take a core of the program's threads
            for reference in list(self._references.values()):
                with suppress(CancelledError):  # where this measurer was closed
                    reference.exception()
        reference = self._reference(job)
        self.watched["checked"] += reference is not None
        best = self._best.get(job.candidate.task_id)
        config = self.config.timing
        return self.submit_run(str(job.library), job.candidate.args_info, config, best, reference, job.built)

    def submit_run(self, *args: Any) -> Future[JobResult]:
        """Queue the job `run`, or one that takes the same arguments."""
        return self.runner.submit(run, args, self.config.run_timeout)
