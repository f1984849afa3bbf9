"""Measuring candidate programs on this machine: builds overlapped with runs, one failure costs one program."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from .host_facts import physical_cores
from .measurement import FailureWatch, MeasureConfig, Measurement
from .output_check import is_comparable, reduction_size
from .pool import JobResult, WorkerPool, Zygote, check_compiler, cores, plan_workers
from .quietness import Neighbours
from .run_job import RunResult

if TYPE_CHECKING:
    from tvm import IRModule

    from .candidate import Candidate


__all__ = ["MeasureConfig", "Measurement", "Measurer", "check_compiler", "cores", "plan_workers"]


@dataclass
class _Job:
    candidate: Candidate
    library: Path
    comparable: bool
    build_seconds: float = 0.0
    stage: str = "build"


class Measurer:
    """Measures candidates on this machine. Use as a context manager: it owns processes and a scratch folder.

    Args:
        target: TVM target as a dictionary.
        config: time-outs, repeats, threads.
        note: told once when other processes take much of the machine.

    Attributes:
        overlaps: whether programs are built while others are timed; else this process should rest meanwhile.
        watched: `checked` outputs; timings `repeated` because the machine was disturbed; programs `disturbed` to the
            end.
    """

    def __init__(
        self,
        target: dict[str, Any],
        config: MeasureConfig | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        check_compiler()
        self.target = target
        self.config = config or MeasureConfig()
        memory = psutil.virtual_memory().total
        builders, runner, self.overlaps = plan_workers(physical_cores(cores()), self.config.threads, memory)
        self._scratch = Path(tempfile.mkdtemp(prefix="tchub-measure-"))
        self._zygote = Zygote()
        self._builders = WorkerPool(self._zygote, builders)
        self._runner = WorkerPool(self._zygote, [runner])
        self._references = References(self._build, self._runner, self._scratch, self.config.check_seconds)
        self._at_once = 4 * len(builders)
        self._best: dict[str, float] = {}
        self._serial = 0
        self._failures = FailureWatch(self.config, "run `tchub doctor`; a busy machine needs longer time-outs")
        self._neighbours = Neighbours(note)
        self.watched: Counter[str] = Counter()

    @property
    def unchecked(self) -> dict[str, str]:
        """Tasks whose outputs cannot be checked, with the reason."""
        return dict(self._references.missing)

    @property
    def outcomes(self) -> Counter[str]:
        """Count of programs by outcome: `ok`, or `Measurement.error`."""
        return self._failures.outcomes

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and remove the scratch folder."""
        self._references.close()
        self._builders.close()
        self._runner.close()
        self._zygote.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def wait(self) -> None:
        """Wait until the first program can be built: TVM is imported in the background. `measure` waits by itself."""
        self._zygote.wait()

    def know(self, task_id: str, latency: float) -> None:
        """Tell the latency of a program measured earlier, so that clearly slower ones stop early."""
        self._best[task_id] = min(latency, self._best.get(task_id, float("inf")))

    def window(self) -> int:
        """Programs that are in hand at once."""
        return self._at_once

    def refer(self, task_id: str, mod: IRModule, *, wait: bool = False) -> None:
        """Tell a task's unscheduled module: the outputs of its programs are compared with what it computes.

        Does nothing for a task told before, or where `check_output` is off.

        Args:
            wait: return when the reference was computed; programs that are measured before then go unchecked.
        """
        if self.config.check_output:
            self._references.add(task_id, mod, self.target)
            if wait:
                self._references.wait(task_id)

    def measure(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Measurement]]:
        """Measure candidates; yields each with its measurement as soon as it is known.

        Raises:
            MeasurementFailureRateError: nearly every program failed; what was measured was yielded before.
        """
        for result in (self._pipeline if self.overlaps else self._phases)(iter(candidates)):
            self._neighbours.look()
            yield result

    def _pipeline(self, waiting: Iterator[Candidate]) -> Iterator[tuple[Candidate, Measurement]]:
        """Builds and runs overlap."""
        active: dict[Future[JobResult], _Job] = {}
        exhausted = False
        while True:
            while not exhausted and len(active) < self.window():
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
                    yield job.candidate, self._failures.count(finished)

    def _phases(self, waiting: Iterator[Candidate]) -> Iterator[tuple[Candidate, Measurement]]:
        """A batch is built on all cores, then timed on all cores."""
        while batch := [c for _, c in zip(range(self.window()), waiting, strict=False)]:
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
                yield job.candidate, self._failures.count(finished)

    def _build(self, module_json: str, target: dict[str, Any], library: Path) -> Future[JobResult]:
        return self._builders.submit("build", (module_json, target, str(library)), self.config.build_timeout)

    def _start_build(self, candidate: Candidate, active: dict[Future[JobResult], _Job]) -> None:
        import tvm

        self._serial += 1
        library = self._scratch / f"{self._serial}.so"
        module_json = tvm.ir.save_json(candidate.mod)
        job = _Job(candidate, library, is_comparable(module_json))
        active[self._build(module_json, self.target, library)] = job

    def _advance(self, job: _Job, result: JobResult, active: dict[Future[JobResult], _Job]) -> Measurement | None:
        """Take a job's result; start its run after its build, or return the measurement when it ended."""
        if result.error is None and job.stage == "build":
            job.build_seconds, job.stage = float(result.value), "run"
            active[self._start_run(job)] = job
            return None
        job.library.unlink(missing_ok=True)
        if result.error is not None:
            error = {"exception": job.stage, "timeout": f"{job.stage}_timeout", "crash": "crash"}[result.error]
            return Measurement((), error, result.message, job.build_seconds, measured_at=time.time())
        return self._measurement(job, result.value)

    def _start_run(self, job: _Job) -> Future[JobResult]:
        candidate = job.candidate
        reference = self._references.of(candidate.task_id, candidate.args_info) if job.comparable else None
        self.watched["checked"] += reference is not None
        best = self._best.get(candidate.task_id)
        args = (str(job.library), candidate.args_info, self.config.timing, best, self.config.drift, reference)
        return self._runner.submit("run", args, self.config.run_timeout)

    def _measurement(self, job: _Job, outcome: RunResult) -> Measurement:
        costs = job.build_seconds, outcome.seconds, time.time()
        if outcome.wrong is not None:
            return Measurement((), "wrong_output", outcome.wrong, *costs)
        self.watched["repeated"] += outcome.repeated
        self.watched["disturbed"] += outcome.disturbed
        measurement = Measurement(tuple(outcome.latencies), None, None, *costs, outcome.disturbed)
        if not outcome.disturbed:
            self.know(job.candidate.task_id, measurement.latency)
        return measurement


ArgsInfo = tuple[tuple[tuple[int, ...], str], ...]


def _args_info(mod: IRModule) -> ArgsInfo:
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    infos: Any = ArgInfo.from_entry_func(mod, remove_preproc=False)
    return tuple((tuple(int(d) for d in info.shape), str(info.dtype)) for info in infos)


Build = Callable[[str, dict[str, Any], Path], Future[JobResult]]
"""Starts to compile a module, given as JSON, for a target into a library."""


class References:
    """Files of right outputs, one a task. A task whose unscheduled program fails or takes long has none.

    Args:
        build: starts to build the unscheduled programs.
        runner: runs them.
        scratch: folder for the files.
        seconds: time that an unscheduled program may take.

    Attributes:
        missing: why tasks have no reference, by task.
    """

    def __init__(self, build: Build, runner: WorkerPool, scratch: Path, seconds: float) -> None:
        self._build = build
        self._runner = runner
        self._scratch = scratch
        self._seconds = seconds
        self._args: dict[str, ArgsInfo] = {}
        self._results: dict[str, Future[JobResult]] = {}
        self._threads = ThreadPoolExecutor(thread_name_prefix="tchub-reference")
        self.missing: dict[str, str] = {}

    def add(self, task_id: str, mod: IRModule, target: dict[str, Any]) -> None:
        """Start to build and run a task's unscheduled program, unless the task is known."""
        if task_id not in self._args:
            self._args[task_id] = _args_info(mod)
            self._results[task_id] = self._threads.submit(self._compute, task_id, mod, target)

    def _compute(self, task_id: str, mod: IRModule, target: dict[str, Any]) -> JobResult:
        import tvm

        library = self._scratch / f"reference-{task_id}.so"
        result = self._build(tvm.ir.save_json(mod), target, library).result()
        if result.error is None:
            job = (str(library), self._args[task_id], reduction_size(mod), str(self._path(task_id)))
            result = self._runner.submit("make_reference", job, self._seconds).result()
            library.unlink(missing_ok=True)
        return result

    def wait(self, task_id: str) -> None:
        """Wait until a task's reference is there, or cannot be."""
        self._results[task_id].result()

    def close(self) -> None:
        """Begin nothing new."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _path(self, task_id: str) -> Path:
        return self._scratch / f"reference-{task_id}.npz"

    def of(self, task_id: str, args_info: Any) -> str | None:
        """The file for programs of a task with these arguments; None where they cannot be checked, or not yet."""
        if self._args.get(task_id) != args_info or not self._results[task_id].done():
            return None
        reference = self._results[task_id].result()
        if reference.error is not None:
            self.missing[task_id] = f"{reference.error}: {reference.message}"
        return str(self._path(task_id)) if reference.error is None and reference.value else None
