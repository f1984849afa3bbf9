"""Ansor's records as schedules of TVM 0.27: the same loops, in the same order, bound to the same threads.

Ansor schedules a graph of stages, where computing a stage at another's loop (`CA`) leaves its own loops as they
are: bounds are inferred last. A TIR schedule moves the block at once and makes its loops anew. So the steps are
replayed in two passes: first those that change the graph (`CHW`, `CHR`, `CI`, `RF`), then, from the output to the
inputs, each stage is moved to where the record computes it and its own steps are applied to its loops.

As bounds inference has it, a factor is never larger than what is left of a moved stage's loop, and a loop of one
iteration that such a factor leaves over does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from ...errors import last_line
from .errors import ReplayError
from .loops import LOOP_STEPS, Loop, Stage, Step
from .operators import Workload, workload

_DATA_PARALLEL = 0  # the type of a block's axis


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replayed record: the schedule, and the block of every stage at the end (None for one without)."""

    schedule: Any
    blocks: tuple[Any, ...]


def replay_steps(workload_key: str, steps: Sequence[Step]) -> Any:
    """The `tvm.s_tir.Schedule` of a record.

    Args:
        workload_key: JSON `[function name, argument, ...]`.
        steps: the record's steps, e.g. `[["FU", 1, [0, 1]], ["AN", 1, 0, 5]]`.

    Raises:
        ReplayError: an operator or a step that is not known, or one that TVM refuses.
    """
    return replay(workload(workload_key), steps).schedule


def replay(task: Workload, steps: Sequence[Step]) -> Replayed:
    """As `replay_steps`, for any program, and with the blocks of the stages."""
    from tvm.s_tir import Schedule

    return _Replay(Schedule(task.mod, error_render_level="fast"), task, steps).run()


class _Unchecked:
    """A schedule whose methods skip TVM's type checks in Python, which take half of the time of a replay."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(type(self._schedule), name)
        bound = partial(getattr(method, "__wrapped__", method), self._schedule)
        setattr(self, name, bound)
        return bound


class _Replay:
    def __init__(self, schedule: Any, task: Workload, steps: Sequence[Step]) -> None:
        self.schedule, self.sch, self.steps = schedule, _Unchecked(schedule), steps
        self.stages = [
            Stage(info.name) if info.placeholder else Stage(block=schedule.get_sblock(info.name))
            for info in task.stages
        ]

    def run(self) -> Replayed:
        for index in range(len(self.steps)):
            self._guarded(index, self._change_graph)
        for stage in reversed(self.stages):
            if stage.block is not None:
                self._work_off(stage)
        return Replayed(self.schedule, tuple(stage.block for stage in self.stages))

    def _guarded(self, index: int, act: Callable[..., None], *args: Any) -> None:
        """Does something for a step; whatever goes wrong names the step."""
        from tvm.s_tir.schedule import ScheduleError

        code = self.steps[index][0]
        try:
            act(index, *args)
        except ReplayError as error:
            raise ReplayError(error.reason, error.message, step=index, remedy=error.remedy) from error
        except ScheduleError as error:
            raise ReplayError("refused", f"TVM refuses {code}: {last_line(error)}", step=index) from error
        except (IndexError, TypeError, ValueError, StopIteration) as error:
            raise ReplayError("wrong-shape", f"{code} does not fit: {last_line(error)}", step=index) from error

    # The first pass: the graph

    def _change_graph(self, index: int) -> None:
        code, stage_id, *operands = self.steps[index]
        stage = self.stages[stage_id]
        if code in LOOP_STEPS:
            stage.todo.append((index, None))
        elif code == "CA":
            stage.target = self.stages[operands[0]]
            stage.target.todo.append((index, stage))
        elif code in self._GRAPH_STEPS:
            self._GRAPH_STEPS[code](self, stage_id, stage, *operands)
        else:
            raise ReplayError("unknown-step", f"no step is called {code!r}")

    def _cache_write(self, stage_id: int, stage: Stage, scope: str) -> None:
        # The block goes on to compute, into the cache; what follows it in the graph is the copy out of it.
        computes, stage.block = stage.block, self.sch.cache_write(stage.block, 0, scope)
        self.stages.insert(stage_id, Stage(block=computes))

    def _cache_read(self, stage_id: int, stage: Stage, scope: str, readers: list[int]) -> None:
        name = stage.name or self.sch.get(stage.block).writes[0].source.name
        blocks = [self.stages[reader].block for reader in readers]
        reads = [region.source.name for region in self.sch.get(blocks[0]).reads]
        copy = self.sch.cache_read(blocks[0], reads.index(name), scope, blocks)
        self.stages.insert(stage_id + 1, Stage(block=copy))

    def _inline(self, _: int, stage: Stage) -> None:
        self.sch.compute_inline(stage.block)
        stage.block = None

    def _compute_root(self, _: int, stage: Stage) -> None:
        stage.target = None

    def _rfactor(self, stage_id: int, stage: Stage, iterator: int, factor_axis: int) -> None:
        # The partial results become a stage in front of this one; the loops of both start afresh.
        target, stage.target = stage.target, None
        self._work_off(stage)
        stage.todo, stage.target = [], target
        partial = self.sch.rfactor(stage.loops[iterator].rv, factor_axis)
        loops = list(self.sch.get_loops(partial))
        factor = loops.pop(iterator)
        self.sch.reorder(*loops[:factor_axis], factor, *loops[factor_axis:])
        self.stages.insert(stage_id, Stage(block=partial, factor_axis=factor_axis))

    _GRAPH_STEPS: ClassVar[dict[str, Callable[..., None]]] = {
        "CHW": _cache_write,
        "CHR": _cache_read,
        "CI": _inline,
        "CR": _compute_root,
        "RF": _rfactor,
    }

    # The second pass: where a stage is computed, and its loops

    def _work_off(self, stage: Stage) -> None:
        loops = self._move(stage) if stage.target is not None else self.sch.get_loops(stage.block)
        stage.loops = [Loop(rv, int(self.sch.get(rv).extent)) for rv in loops]
        for index, attached in stage.todo:
            if attached is not None:
                attached.at = stage.loops[: self.steps[index][3] + 1]
            else:
                self._guarded(index, self._change_loops, stage)

    def _move(self, stage: Stage) -> list[Any]:
        """Moves a block to where it is computed; gives its new loops, data-parallel ones first as Ansor has them."""
        self.sch.compute_at(stage.block, self._loop_of(stage), preserve_unit_loops=True)
        axes = self.sch.get(stage.block).iter_vars
        loops = list(self.sch.get_loops(stage.block)[-len(axes) :])
        # After an rfactor the block has the factored axis first, whichever it is.
        parallel = [loop for loop, axis in zip(loops, axes, strict=True) if axis.iter_type == _DATA_PARALLEL]
        reduced = [loop for loop, axis in zip(loops, axes, strict=True) if axis.iter_type != _DATA_PARALLEL]
        parallel.insert(stage.factor_axis, parallel.pop(0))
        if [*parallel, *reduced] != loops:
            self.sch.reorder(*parallel, *reduced)
        return [*parallel, *reduced]

    def _loop_of(self, stage: Stage) -> Any:
        """The loop that a stage is computed at; where it was left out, the next one around it."""
        passed: list[Stage] = []  # a damaged record computes a stage at itself
        while stage.target is not None and stage not in passed:
            for loop in reversed(stage.at):
                if loop.now().rv is not None:
                    return loop.now().rv
            passed.append(stage)
            stage = stage.target
        raise ReplayError("wrong-shape", "a stage is computed at no loop")

    def _change_loops(self, index: int, stage: Stage) -> None:
        code, _, *operands = self.steps[index]
        LOOP_STEPS[code](self.sch, stage, self.steps, *operands)
