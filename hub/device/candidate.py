"""One schedule of a task, ready to be measured, TVM's traces as plain JSON, and MetaSchedule's records of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...zoo.corpus.canonical import trace_key
from ...zoo.primitives.metaschedule import plain
from ...zoo.tile_instructions import register_named

if TYPE_CHECKING:
    from tvm import IRModule

WEIGHTS = "layout_free_buffers"
"""Attribute that Relax gives a task's function: the positions of its parameters that are the network's constants."""


@dataclass(frozen=True)
class Candidate:
    """One schedule of a task, ready to be measured.

    Attributes:
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
    text = json.dumps(trace, separators=(",", ":"))
    return Candidate(task_id, trace_key(trace), text, strategy, candidate.sch.mod, args_of(candidate.args_info))


def args_of(infos: Iterable[Any]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Return shape and dtype of each of MetaSchedule's `ArgInfo`."""
    return tuple((tuple(int(d) for d in info.shape), str(info.dtype)) for info in infos)


def trace_json(trace: Any) -> list[Any]:
    """Return a TVM `Trace` as plain `[instructions, decisions]`."""
    return plain(trace.as_json())


def replayed(mod: IRModule, trace: Sequence[Any]) -> Any:
    """Return the schedule of a task's module that a trace, `[instructions, decisions]`, leads to."""
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    register_named(trace)
    schedule = Schedule(mod, error_render_level="none")
    Trace.apply_json_to_schedule(trace, schedule)
    return schedule


def tuning_record(
    mod: IRModule, target: Any, workload: Any, trace: Sequence[Any], seconds: Sequence[float]
) -> Any | None:
    """Return a stored program as a MetaSchedule `TuningRecord`, None where its trace does not apply to the task.

    Args:
        mod: the task's unscheduled module; workload: MetaSchedule's of it.
        trace: `[instructions, decisions]`; seconds: of the repeats.
    """
    from tvm.s_tir import meta_schedule as ms

    try:
        schedule = replayed(mod, trace)
    except Exception:  # TVM raises errors of every class for a trace that speaks of other blocks or loops
        return None
    args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    return ms.database.TuningRecord(schedule.trace, workload, list(seconds), target, args)
