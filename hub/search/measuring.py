"""Measuring a batch of search candidates: with tchub's workers, or with any MetaSchedule builder and runner."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.utils import remove_build_dir

from ..device.candidate import Candidate, from_measure_candidate
from ..device.measure import Measurement, Measurer
from ..device.pool import WorkerPool

if TYPE_CHECKING:
    from ..networks.tasks import TuningTask

# TVM's names of the devices that a target may stand for (DLDeviceType).
_DEVICE_NAMES = {1: "cpu", 2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm"}

Job = tuple["TuningTask", Any]
"""A task and a candidate of it."""


class Measure(Protocol):
    """Measures candidates, of several tasks maybe; yields index and measurement as soon as known, in any order.

    Jobs may be searched for while earlier ones are measured: one that is not needed yet need not be asked for.
    """

    def __call__(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]: ...


class WorkerMeasure:
    """Measure with tchub's workers, which compile here and run here or on RPC servers; builds overlap with runs.

    Args:
        measurer: a `Measurer`, an `RpcMeasurer`, or what packs programs for another machine.
    """

    def __init__(self, measurer: Any) -> None:
        self._measurer = measurer
        # Workers that compile; None where there are none.
        self.builders: WorkerPool | None = getattr(measurer, "builders", None)
        # Whether results come at once, so that small rounds cost nothing.
        self.prompt = getattr(measurer, "prompt", True)

    def of_network(self, weights: int) -> None:
        """Measure programs of a network that reads so many bytes of weights; see `TimingConfig.weights`."""
        config = self._measurer.config
        self._measurer.config = replace(config, timing=replace(config.timing, weights=weights))

    @property
    def room(self) -> int:
        """Programs that keep all cores and servers busy."""
        return self._measurer.window()

    def __call__(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        ours: list[Candidate] = []
        modules: dict[str, Any] = {}
        if not getattr(self._measurer, "preempts", True):
            jobs = list(jobs)  # the search would share the core of the program that is timed

        def each() -> Iterator[Candidate]:
            for task, candidate in jobs:
                modules[task.task_id] = task.mod
                ours.append(from_measure_candidate(task.task_id, "search", candidate))
                yield ours[-1]

        for candidate, measurement in self._measurer.measure(each()):
            yield next(i for i, one in enumerate(ours) if one is candidate), measurement
        if isinstance(self._measurer, Measurer):
            # After a task's first programs, which would wait for its reference; the compiled network is checked anyway.
            for task_id, mod in modules.items():
                self._measurer.refer(task_id, mod)


class RunnerMeasure:
    """Measure with a MetaSchedule builder and runner, e.g. of a remote device behind RPC.

    Args:
        builder, runner: MetaSchedule objects.
        target: a `tvm.target.Target`.
    """

    builders = None

    def __init__(self, builder: Any, runner: Any, target: Any) -> None:
        self._builder, self._runner, self._target = builder, runner, target
        self._device: str = _DEVICE_NAMES.get(int(target.get_target_device_type()), str(target.kind.name))

    def __call__(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        candidates = [candidate for _, candidate in jobs]
        if not candidates:
            return
        start = time.perf_counter()
        builds = self._builder.build([ms.builder.BuilderInput(c.sch.mod, self._target) for c in candidates])
        build_seconds = (time.perf_counter() - start) / len(candidates)
        try:
            yield from self._run(candidates, builds, build_seconds)
        finally:
            for build in builds:
                if build.artifact_path is not None:
                    remove_build_dir(build.artifact_path)

    def _run(
        self, candidates: Sequence[Any], builds: Sequence[Any], build_seconds: float
    ) -> Iterator[tuple[int, Measurement]]:
        built = [i for i, build in enumerate(builds) if build.error_msg is None]
        inputs = [ms.runner.RunnerInput(builds[i].artifact_path, self._device, candidates[i].args_info) for i in built]
        start = time.perf_counter()
        futures = dict(zip(built, self._runner.run(inputs) if inputs else [], strict=True))
        for index, build in enumerate(builds):
            if index not in futures:
                yield index, Measurement((), "build", _one_line(build.error_msg), build_seconds, 0.0, time.time())
                continue
            result = futures[index].result()
            seconds, start = time.perf_counter() - start, time.perf_counter()
            error = None if result.error_msg is None else "run"
            times = () if error else tuple(float(s) for s in result.run_secs or ())
            yield index, Measurement(times, error, _one_line(result.error_msg), build_seconds, seconds, time.time())


def runner_result(measurement: Measurement) -> Any:
    """Return a measurement as a MetaSchedule `RunnerResult`."""
    if measurement.error is None and measurement.latencies:
        return ms.runner.RunnerResult([float(x) for x in measurement.latencies], None)
    return ms.runner.RunnerResult(None, f"{measurement.error}: {measurement.message}")


def _one_line(message: Any) -> str | None:
    """Return the line that says what went wrong: a Python traceback's last, else the first."""
    if message is None:
        return None
    lines = [line.strip() for line in str(message).splitlines() if line.strip()] or ["unknown error"]
    return (lines[-1] if "Traceback" in str(message) else lines[0])[:300]
