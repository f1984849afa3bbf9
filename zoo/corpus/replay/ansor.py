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
from dataclasses import dataclass, field
from functools import partial
from math import ceil, prod
from typing import Any

from ...errors import last_line
from ...primitives.ansor import PARALLEL, THREADS, UNROLL, VECTORIZE
from .operators import ReplayError, UnscheduledTask

Step = Sequence[Any]


@dataclass(eq=False, slots=True)
class _Loop:
    """An iterator of a stage: its loop (None where it has one iteration and was left out) and its extent."""

    rv: Any
    extent: int
    fused_into: _Loop | None = None

    def now(self) -> _Loop:
        return self if self.fused_into is None else self.fused_into.now()


@dataclass(eq=False, slots=True)
class _Stage:
    """A stage of the graph."""

    name: str = ""  # of the buffer of a placeholder
    block: Any = None  # None for a placeholder or an inlined stage
    # Its steps by index, with the stage that is attached where a `CA` names this stage as its target.
    todo: list[tuple[int, _Stage | None]] = field(default_factory=list)
    loops: list[_Loop] = field(default_factory=list)
    target: _Stage | None = None  # that it is computed at; None at the root
    at: list[_Loop] = field(default_factory=list)  # the target's iterators up to the one that it is computed at
    factor_axis: int = 0  # of partial results, where the factored loop stands among the others


def split_lengths(steps: Sequence[Step], index: int) -> tuple[list[int], bool, bool]:
    """Return the factors of a split, whether they are of the inner loops, and whether no bound makes them smaller.

    `SP` has its own. `FSP` follows an earlier split, with its innermost loops taken together. `FFSP` takes the
    product of one level of several earlier splits: the threads of the consumer, of which some may find nothing to do.
    A last operand 1 of `SP`, which Ansor does not know, says that the lengths are threads too.
    """
    code, _, _, *operands = steps[index]
    if code == "SP":
        return operands[1], bool(operands[2]), operands[3:] == [1]
    if code == "FSP":
        lengths, inner = steps[operands[0]][4:6]
        return [*lengths[: operands[1] - 1], prod(lengths[operands[1] - 1 :])], bool(inner), False
    return [prod(steps[source][4][operands[1]] for source in operands[0])], bool(operands[2]), True


def _split(sch: Any, stage: _Stage, iterator: int, lengths: list[int], inner: bool, fixed: bool) -> None:
    """`SP`, `FSP`, `FFSP`: the loop left over takes the rest."""
    if fixed:
        _real_loop(sch, stage, iterator)
    loop = stage.loops[iterator]
    if stage.target is None or fixed:
        rest = ceil(loop.extent / prod(lengths))
        parts: list[int | None] = [rest, *lengths] if inner else [*lengths, rest]
    else:
        parts = _clamped(loop.extent, lengths, inner)
    real = [part for part in parts if part is not None]
    loops = iter(sch.split(loop.rv, real) if len(real) > 1 else [loop.rv])
    stage.loops[iterator : iterator + 1] = [
        _Loop(None, 1) if part is None else _Loop(next(loops), part) for part in parts
    ]


def _clamped(extent: int, lengths: list[int], inner: bool) -> list[int | None]:
    """Return factors, outer to inner, of a moved stage's loop; None for a loop that nothing is left for."""
    parts: list[int | None] = []
    for length in reversed(lengths) if inner else lengths:
        part = min(length, extent)
        parts.append(part if extent > 1 or not parts else None)
        extent = ceil(extent / part)
    parts.append(extent if extent > 1 else None)
    return parts[::-1] if inner else parts


def _real_loop(sch: Any, stage: _Stage, iterator: int) -> Any:
    """Return the loop of an iterator; add one where it was left out."""
    loop = stage.loops[iterator]
    if loop.rv is None:
        inner = next((other.rv for other in stage.loops[iterator:] if other.rv is not None), stage.block)
        loop.rv = sch.add_unit_loop(inner)
    return loop.rv


def _reorder(sch: Any, stage: _Stage, order: list[int]) -> None:
    if sorted(order) != list(range(len(stage.loops))):
        raise ValueError(f"{order} is no order of {len(stage.loops)} loops")
    stage.loops = [stage.loops[i] for i in order]
    loops = [loop.rv for loop in stage.loops if loop.rv is not None]
    if len(loops) > 1:
        sch.reorder(*loops)


def _fuse(sch: Any, stage: _Stage, iterators: list[int]) -> None:
    first, last = iterators[0], iterators[-1]
    if iterators != list(range(first, last + 1)) or last >= len(stage.loops):
        raise ValueError(f"{iterators} are not adjacent iterators of {len(stage.loops)}")
    parts = stage.loops[first : last + 1]
    loops = [loop.rv for loop in parts if loop.rv is not None]
    rv = sch.fuse(*loops) if len(loops) > 1 else next(iter(loops), None)
    whole = _Loop(rv, prod(loop.extent for loop in parts))
    for loop in parts:
        loop.fused_into = whole
    stage.loops[first : last + 1] = [whole]


def _annotate(sch: Any, stage: _Stage, iterator: int, kind: int | str) -> None:
    """`AN`: a thread, vector, parallel or unrolled loop; one of one iteration is no vector and not unrolled.

    A `kind` that is a text names the thread axis itself, for frameworks with more of them than Ansor.
    """
    loop = stage.loops[iterator]
    if isinstance(kind, str) or kind in THREADS:
        sch.bind(_real_loop(sch, stage, iterator), kind if isinstance(kind, str) else THREADS[kind])
    elif kind not in (0, UNROLL, VECTORIZE, PARALLEL):
        raise ReplayError("unknown-step", f"no annotation has the number {kind} here")
    elif kind and loop.extent > 1:
        {UNROLL: sch.unroll, VECTORIZE: sch.vectorize, PARALLEL: sch.parallel}[kind](loop.rv)


def _pragma(sch: Any, stage: _Stage, iterator: int, text: str) -> None:
    """`PR`: how large a body may be unrolled below a loop, as MetaSchedule's annotations."""
    key, value, *implicit = text.split("$")
    if key != "auto_unroll_max_step":
        raise ReplayError("unknown-step", f"no pragma is called {key!r}")
    loop = next((loop.rv for loop in stage.loops[iterator:] if loop.rv is not None), None)
    if int(value) and loop is not None:
        sch.annotate(loop, "pragma_auto_unroll_max_step", int(value))
        sch.annotate(loop, "pragma_unroll_explicit", int(not implicit))


_SPLITS = ("SP", "FSP", "FFSP")
_LOOP_STEPS: dict[str, Callable[..., None]] = {"RE": _reorder, "FU": _fuse, "AN": _annotate, "PR": _pragma}
"""Effect of a step on one stage, as a function of the schedule, the stage and the step's operands."""
_DATA_PARALLEL = 0  # the type of a block's axis


def replay(task: UnscheduledTask, steps: Sequence[Step]) -> Any:
    """Return the `tvm.s_tir.Schedule` of a record.

    Args:
        steps: the record's, e.g. `[["FU", 1, [0, 1]], ["AN", 1, 0, 5]]`.

    Raises:
        ReplayError: a step that is not known, or one that TVM refuses.
    """
    from tvm.s_tir import Schedule

    return _Replay(Schedule(task.mod, error_render_level="fast"), task, steps).run()


class _FastSchedule:
    """A schedule whose methods skip TVM's type checks in Python, which take half of the time of a replay."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(type(self._schedule), name)
        bound = partial(getattr(method, "__wrapped__", method), self._schedule)
        setattr(self, name, bound)
        return bound


class _Replay:
    def __init__(self, schedule: Any, task: UnscheduledTask, steps: Sequence[Step]) -> None:
        self.schedule, self.sch, self.steps = schedule, _FastSchedule(schedule), steps
        self.stages = [
            _Stage(info.name) if info.placeholder else _Stage(block=schedule.get_sblock(info.name))
            for info in task.stages
        ]

    def run(self) -> Any:
        for index in range(len(self.steps)):
            self._guarded(index, self._change_graph)
        for stage in reversed(self.stages):
            if stage.block is not None:
                self._work_off(stage)
        return self.schedule

    def _guarded(self, index: int, act: Callable[..., None], *args: Any) -> None:
        """Do something for a step; whatever goes wrong names the step."""
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
        if code in _LOOP_STEPS or code in _SPLITS:
            stage.todo.append((index, None))
        elif code == "CA":
            stage.target = self.stages[operands[0]]
            stage.target.todo.append((index, stage))
        elif code == "CR":
            stage.target = None
        elif code == "CI":
            self.sch.compute_inline(stage.block)
            stage.block = None
        elif code == "CHW":
            # The block goes on to compute, into the cache; what follows it in the graph is the copy out of it.
            computes, stage.block = stage.block, self.sch.cache_write(stage.block, 0, operands[0])
            self.stages.insert(stage_id, _Stage(block=computes))
        elif code == "CHR":
            self._cache_read(stage_id, stage, *operands)
        elif code == "RF":
            self._rfactor(stage_id, stage, *operands)
        else:
            raise ReplayError("unknown-step", f"no step is called {code!r}")

    def _cache_read(self, stage_id: int, stage: _Stage, scope: str, readers: list[int]) -> None:
        name = stage.name or self.sch.get(stage.block).writes[0].source.name
        blocks = [self.stages[reader].block for reader in readers]
        reads = [region.source.name for region in self.sch.get(blocks[0]).reads]
        copy = self.sch.cache_read(blocks[0], reads.index(name), scope, blocks)
        self.stages.insert(stage_id + 1, _Stage(block=copy))

    def _rfactor(self, stage_id: int, stage: _Stage, iterator: int, factor_axis: int) -> None:
        # The partial results become a stage in front of this one; the loops of both start afresh.
        target, stage.target = stage.target, None
        self._work_off(stage)
        stage.todo, stage.target = [], target
        partial = self.sch.rfactor(stage.loops[iterator].rv, factor_axis)
        loops = list(self.sch.get_loops(partial))
        factor = loops.pop(iterator)
        self.sch.reorder(*loops[:factor_axis], factor, *loops[factor_axis:])
        self.stages.insert(stage_id, _Stage(block=partial, factor_axis=factor_axis))

    # The second pass: where a stage is computed, and its loops

    def _work_off(self, stage: _Stage) -> None:
        loops = self._move(stage) if stage.target is not None else self.sch.get_loops(stage.block)
        stage.loops = [_Loop(rv, int(self.sch.get(rv).extent)) for rv in loops]
        for index, attached in stage.todo:
            if attached is not None:
                attached.at = stage.loops[: self.steps[index][3] + 1]
            else:
                self._guarded(index, self._change_loops, stage)
        # The loops that TVM has must be those that the record's numbers give.
        wanted = [loop.extent for loop in stage.loops if loop.rv is not None]
        actual = [int(self.sch.get(loop.rv).extent) for loop in stage.loops if loop.rv is not None]
        if actual != wanted:
            raise ReplayError("different", f"the loops of a stage are {actual}, the record says {wanted}")

    def _move(self, stage: _Stage) -> list[Any]:
        """Move a block to where it is computed; return its new loops, data-parallel ones first as Ansor has them."""
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

    def _loop_of(self, stage: _Stage) -> Any:
        """Return the loop that a stage is computed at; where it was left out, the next one around it."""
        passed: list[_Stage] = []  # a damaged record computes a stage at itself
        while stage.target is not None and stage not in passed:
            for loop in reversed(stage.at):
                if loop.now().rv is not None:
                    return loop.now().rv
            passed.append(stage)
            stage = stage.target
        raise ReplayError("wrong-shape", "a stage is computed at no loop")

    def _change_loops(self, index: int, stage: _Stage) -> None:
        code, _, *operands = self.steps[index]
        if code in _SPLITS:
            _split(self.sch, stage, operands[0], *split_lengths(self.steps, index))
        else:
            _LOOP_STEPS[code](self.sch, stage, *operands)
