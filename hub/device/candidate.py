"""One schedule of a task, ready to be measured, and TVM's traces and records as plain JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...zoo.corpus.canonical import trace_key

if TYPE_CHECKING:
    from tvm import IRModule


@dataclass(frozen=True)
class Candidate:
    """One schedule of a task, ready to be measured.

    Attributes:
        task_id: the task.
        key: 16 hex digits of the trace; equal keys of a task are the same schedule.
        trace: JSON text of `[instructions, decisions]`, post-processing included, so that it replays as it is.
        strategy: `random` or `evolutionary`.
        mod: the scheduled TIR module.
        args_info: shape and dtype of each argument.
    """

    task_id: str
    key: str
    trace: str
    strategy: str
    mod: IRModule = field(repr=False, compare=False)
    args_info: tuple[tuple[tuple[int, ...], str], ...] = field(repr=False, compare=False, default=())


def from_measure_candidate(task_id: str, strategy: str, candidate: Any) -> Candidate:
    """Return a MetaSchedule `MeasureCandidate` as a `Candidate`."""
    trace = trace_json(candidate.sch.trace)
    args = tuple((tuple(int(d) for d in info.shape), str(info.dtype)) for info in candidate.args_info)
    text = json.dumps(trace, separators=(",", ":"))
    return Candidate(task_id, trace_key(trace), text, strategy, candidate.sch.mod, args)


def trace_json(trace: Any) -> list[Any]:
    """Return a TVM `Trace` as plain `[instructions, decisions]`."""
    return _plain(trace.as_json())


def record_json(record: Any) -> list[Any]:
    """Return a MetaSchedule `TuningRecord` as plain `[trace, seconds, target, arguments]`.

    Its own `as_json` fails where a program changes the layout of a constant.
    """
    seconds = None if record.run_secs is None else [float(s) for s in record.run_secs]
    target = None if record.target is None else _plain(record.target.export())
    args = None if record.args_info is None else [_plain(info.as_json()) for info in record.args_info]
    return [trace_json(record.trace), seconds, target, args]


def tuning_record(mod: IRModule, target: Any, workload: Any, trace: Sequence[Any], latency: float) -> Any | None:
    """Return a stored program as a MetaSchedule `TuningRecord`, None where its trace does not apply to the task.

    Args:
        mod: the task's unscheduled module.
        target: a `tvm.target.Target`.
        workload: MetaSchedule's `Workload` of the task.
        trace: `[instructions, decisions]`.
        latency: in seconds.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.schedule import Trace

    schedule: Any = Schedule(mod, error_render_level="none")
    try:
        Trace.apply_json_to_schedule(trace, schedule)
    except Exception:  # TVM raises errors of every class for a trace that speaks of other blocks or loops
        return None
    args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    return ms.database.TuningRecord(schedule.trace, workload, [latency], target, args)


def _plain(value: Any) -> Any:
    """Return TVM's containers of a JSON trace as plain lists, numbers and strings."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    if hasattr(value, "__iter__"):
        return [_plain(v) for v in value]
    return value.value if hasattr(value, "value") else value
