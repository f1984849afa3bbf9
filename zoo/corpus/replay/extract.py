"""From measured programs of any framework to TVM's statement features, a few programs at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import last_line
from ...features.columns import PERSTORE_WIDTH
from ...tvm_import import import_tensor_intrinsics
from .ansor import replay_steps
from .autotvm import replay_knobs
from .errors import ReplayError

GPU_TARGETS = ("cuda", "nvidia", "rocm", "opencl", "metal", "vulkan")


@dataclass(frozen=True, slots=True)
class Request:
    """A program whose features are wanted.

    Attributes:
        framework: who wrote its trace.
        workload: as `Task.workload` holds it for that framework; trace: as `Program.trace` does.
        gpu: whether it is for a GPU: all that the features know of a target.
    """

    framework: str
    workload: str
    trace: str
    gpu: bool


@dataclass(frozen=True, slots=True)
class NoFeatures:
    """Why a program has none, and a message.

    The reason is a `ReplayError`'s, `not-lowered` where TVM cannot lower the replay, or `crash` where it died of it.
    """

    reason: str
    message: str


def schedule_of(request: Request) -> Any:
    """The program as a `tvm.s_tir.Schedule`.

    Raises:
        ReplayError: it cannot be replayed.
    """
    if request.framework not in _REPLAYS:
        raise ReplayError("unknown-framework", f"no replay of {request.framework} programs is known")
    return _REPLAYS[request.framework](request.workload, request.trace)


def features_of(requests: Sequence[Request]) -> list[np.ndarray | NoFeatures]:
    """Statement features, float32 of shape (statements, 164), or the reason why there are none."""
    found: list[np.ndarray | NoFeatures] = []
    schedules: list[tuple[int, Any, bool]] = []
    for index, request in enumerate(requests):
        try:
            schedules.append((index, schedule_of(request), request.gpu))
            found.append(np.zeros((0, PERSTORE_WIDTH), np.float32))
        except ReplayError as error:
            found.append(NoFeatures(error.reason, error.message))
    for gpu in (False, True):
        of_kind = [(index, schedule) for index, schedule, for_gpu in schedules if for_gpu == gpu]
        made = _extract([schedule for _, schedule in of_kind], gpu) if of_kind else iter(())
        for (index, _), features in zip(of_kind, made, strict=True):
            found[index] = features
    return found


def for_gpu(target: str) -> bool:
    """Whether a target (JSON, of a dict or of TVM's older texts) is a GPU."""
    return any(name in target for name in GPU_TARGETS)


def _extract(schedules: list[Any], gpu: bool) -> Iterator[np.ndarray | NoFeatures]:
    from tvm.s_tir import meta_schedule as ms

    # The extractor reads the schedules alone; a candidate wants argument infos only for running it.
    candidates = [ms.MeasureCandidate(schedule, []) for schedule in schedules]
    extractor, context = _extractor(gpu)
    try:
        made = list(extractor.extract_from(context, candidates))
    except Exception as error:  # TVM raises errors of every class from its passes
        if len(schedules) > 1:
            for schedule in schedules:
                yield from _extract([schedule], gpu)
        else:
            yield NoFeatures("not-lowered", last_line(error))
        return
    yield from (features.numpy().astype(np.float32) for features in made)


@lru_cache(2)
def _extractor(gpu: bool) -> tuple[Any, Any]:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    import_tensor_intrinsics()
    # Whatever GPU it is: the extractor asks no more than whether the target is CUDA's.
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_75"} if gpu else {"kind": "llvm", "num-cores": 1})
    context = ms.TuneContext(target=target, num_threads=1)
    return ms.feature_extractor.PerStoreFeature(extract_workload=False), context


def _ansor(workload: str, trace: str) -> Any:
    return replay_steps(workload, _list(trace))


def _autotvm(workload: str, trace: str) -> Any:
    return replay_knobs(workload, _list(trace)).schedule


def _list(trace: str) -> list[Any]:
    try:
        return list(json.loads(trace))
    except (ValueError, TypeError, RecursionError) as error:
        raise ReplayError("wrong-shape", f"the trace is no JSON list: {trace[:120]}") from error


def _metaschedule(workload: str, trace: str) -> Any:
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    schedule = Schedule(_module(workload), error_render_level="fast")
    try:
        Trace.apply_json_to_schedule(json.loads(trace), schedule)
    except Exception as error:  # a trace of another TVM fails in more ways than ScheduleError
        raise ReplayError("refused", f"TVM refuses the trace: {last_line(error)}") from error
    return schedule


@lru_cache(64)
def _module(workload: str) -> Any:
    import tvm

    try:
        return tvm.ir.load_json(workload)
    except Exception as error:
        raise ReplayError("unknown-workload", f"TVM cannot load the task: {last_line(error)}") from error


_REPLAYS: dict[str, Callable[[str, str], Any]] = {
    "ansor": _ansor,
    "autotvm": _autotvm,
    "metaschedule": _metaschedule,
}
