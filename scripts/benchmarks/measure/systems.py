"""The systems that the benchmark compares: each is prepared once, then measures a task's candidates."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from statistics import median
from typing import Any

# Of each candidate, in order: its latency in seconds, or None and an error; and what else a system counts.
Results = tuple[Sequence[tuple[float | None, str | None]], dict[str, Any]]
Prepared = Callable[[Any, Sequence[Any]], Results]


@lru_cache(maxsize=1)
def local_target() -> dict[str, Any]:
    """This machine's CPU, one thread a program."""
    from tchub.hub.device.detect import detect_local

    return {"kind": "llvm", "mcpu": detect_local().mcpu, "num-cores": 1}


def _through(builder: Any, runner: Any, candidates: Sequence[Any]) -> Results:
    """Measure as MetaSchedule's task scheduler does: build the batch, run what was built, collect."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.arg_info import TensorInfo
    from tvm.s_tir.meta_schedule.utils import remove_build_dir
    from tvm.target import Target

    target = Target(local_target())
    builds = builder.build([ms.builder.BuilderInput(c.mod, target) for c in candidates])
    arguments: list[list[Any]] = [[TensorInfo(dtype, shape) for shape, dtype in c.args_info] for c in candidates]
    built = [i for i, build in enumerate(builds) if build.error_msg is None]
    inputs = [ms.runner.RunnerInput(builds[i].artifact_path, "cpu", arguments[i]) for i in built]
    futures = dict(zip(built, runner.run(inputs) if inputs else [], strict=True))
    programs: list[tuple[float | None, str | None]] = []
    for i, build in enumerate(builds):
        result = futures[i].result() if i in futures else None
        error = build.error_msg if result is None else result.error_msg
        if result is None or error is not None:
            programs.append((None, str(error).strip().splitlines()[-1][:300]))
        else:
            programs.append((median(map(float, result.run_secs)), None))
        if build.artifact_path is not None:
            remove_build_dir(build.artifact_path)
    return programs, {}


@contextmanager
def stock() -> Iterator[Prepared]:
    """TVM's LocalBuilder and LocalRunner at their defaults, one thread a program."""
    from tvm.s_tir import meta_schedule as ms

    os.environ["TVM_NUM_THREADS"] = "1"
    builder, runner = ms.builder.LocalBuilder(), ms.runner.LocalRunner()
    yield lambda _task, candidates: _through(builder, runner, candidates)


@contextmanager
def forked() -> Iterator[Prepared]:
    """tchub behind MetaSchedule's own classes."""
    from tchub.hub.device.meta_schedule import make_builder_runner

    with make_builder_runner() as both:
        both.wait()
        yield lambda _task, candidates: _through(both.builder, both.runner, candidates)


@contextmanager
def ours() -> Iterator[Prepared]:
    """tchub's Measurer: outputs checked, the machine watched."""
    from tchub.hub.device.measure import Measurer

    start = time.perf_counter()
    with Measurer(local_target()) as measurer:
        measurer.wait()
        start_seconds = time.perf_counter() - start

        def measure(task: Any, candidates: Sequence[Any]) -> Results:
            measurer.refer(task.task_id, task.mod)
            by_key = {candidate.key: measurement for candidate, measurement in measurer.measure(candidates)}
            taken = [by_key[candidate.key] for candidate in candidates]
            programs = [(None, f"{m.error}: {m.message}") if m.error else (m.latency, None) for m in taken]
            facts = {"start_seconds": start_seconds} | {
                name: sum(getattr(m, name) for m in taken) for name in ("build_seconds", "run_seconds")
            }
            return programs, facts | {"watched": dict(measurer.watched), "unchecked": measurer.unchecked}

        yield measure


SYSTEMS: dict[str, Callable[[], AbstractContextManager[Prepared]]] = {"stock": stock, "ours": ours, "forked": forked}
