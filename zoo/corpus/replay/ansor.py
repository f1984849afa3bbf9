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
from typing import Any, ClassVar

from ...errors import last_line
from .operators import ReplayError, Workload, workload

Step = Sequence[Any]

UNROLL, VECTORIZE, PARALLEL = 1, 2, 3
THREADS = {
    4: "vthread.x",
    5: "blockIdx.x",
    6: "threadIdx.x",
    7: "blockIdx.y",
    8: "threadIdx.y",
    9: "blockIdx.z",
    10: "threadIdx.z",
}
"""The annotations of the step `AN`, by their numbers in a record."""


@dataclass(eq=False, slots=True)
class Loop:
    """An iterator of a stage: its loop (None where it has one iteration and was left out) and its extent."""

    rv: Any
    extent: int
    fused_into: Loop | None = None

    def now(self) -> Loop:
        """The loop that this one has become part of."""
        return self if self.fused_into is None else self.fused_into.now()


@dataclass(eq=False, slots=True)
class Stage:
    """A stage of the graph.

    Attributes:
        name: of the buffer of a placeholder; empty for others.
        block: its block; None for a placeholder or an inlined stage.
        todo: its steps by index, with the stage that is attached where a `CA` names this stage as its target.
        loops: its iterators now.
        target: the stage that it is computed at; None at the root.
        at: the target's iterators up to the one that it is computed at.
        factor_axis: of partial results, where the factored loop stands among the others.
    """

    name: str = ""
    block: Any = None
    todo: list[tuple[int, Stage | None]] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    target: Stage | None = None
    at: list[Loop] = field(default_factory=list)
    factor_axis: int = 0


def split(
    sch: Any, stage: Stage, _: Sequence[Step], iterator: int, __: int, lengths: list[int], inner: int, fixed: int = 0
) -> None:
    """`SP`: the lengths are of the inner loops (`inner`) or of the outer ones; the loop left takes the rest.

    `fixed` is no word of Ansor: no bound makes the lengths smaller, since they are threads.
    """
    if fixed:
        _made_real(sch, stage, iterator)
    _split(sch, stage, iterator, lengths, inner_to_outer=bool(inner), fixed=bool(fixed))


def follow_split(sch: Any, stage: Stage, steps: Sequence[Step], iterator: int, source: int, parts: int) -> None:
    """`FSP`: like an earlier split, with its innermost loops taken together."""
    lengths, inner = steps[source][4:6]
    taken = [*lengths[: parts - 1], prod(lengths[parts - 1 :])]
    _split(sch, stage, iterator, taken, inner_to_outer=bool(inner))


def follow_fused_split(
    sch: Any, stage: Stage, steps: Sequence[Step], iterator: int, sources: list[int], level: int, factor: int
) -> None:
    """`FFSP`: by the product of one level of several earlier splits (the number of threads of the consumer)."""
    length = prod(steps[source][4][level] for source in sources)
    loop = stage.loops[iterator]
    parts = [ceil(loop.extent / length), length] if factor else [length, ceil(loop.extent / length)]
    # Threads are as many as the consumer has, even if some of them find nothing to do.
    made = sch.split(_made_real(sch, stage, iterator), parts)
    stage.loops[iterator : iterator + 1] = map(Loop, made, parts)


def reorder(sch: Any, stage: Stage, _: Sequence[Step], order: list[int]) -> None:
    """`RE`: the iterators in their new order."""
    if sorted(order) != list(range(len(stage.loops))):
        raise ValueError(f"{order} is no order of {len(stage.loops)} loops")
    stage.loops = [stage.loops[i] for i in order]
    loops = [loop.rv for loop in stage.loops if loop.rv is not None]
    if len(loops) > 1:
        sch.reorder(*loops)


def fuse(sch: Any, stage: Stage, _: Sequence[Step], iterators: list[int]) -> None:
    """`FU`: adjacent iterators become one."""
    first, last = iterators[0], iterators[-1]
    if iterators != list(range(first, last + 1)) or last >= len(stage.loops):
        raise ValueError(f"{iterators} are not adjacent iterators of {len(stage.loops)}")
    parts = stage.loops[first : last + 1]
    loops = [loop.rv for loop in parts if loop.rv is not None]
    rv = sch.fuse(*loops) if len(loops) > 1 else next(iter(loops), None)
    whole = Loop(rv, prod(loop.extent for loop in parts))
    for loop in parts:
        loop.fused_into = whole
    stage.loops[first : last + 1] = [whole]


def annotate(sch: Any, stage: Stage, _: Sequence[Step], iterator: int, kind: int | str) -> None:
    """`AN`: what the loop becomes; a loop of one iteration is neither a vector nor worth unrolling.

    A `kind` that is a text names the thread axis itself, for frameworks with more of them than Ansor.
    """
    loop = stage.loops[iterator]
    if isinstance(kind, str) or kind in THREADS:
        sch.bind(_made_real(sch, stage, iterator), kind if isinstance(kind, str) else THREADS[kind])
    elif kind not in (0, UNROLL, VECTORIZE, PARALLEL):
        raise ReplayError("unknown-step", f"no annotation has the number {kind} here")
    elif kind and loop.extent > 1:
        {UNROLL: sch.unroll, VECTORIZE: sch.vectorize, PARALLEL: sch.parallel}[kind](loop.rv)


def pragma(sch: Any, stage: Stage, _: Sequence[Step], iterator: int, text: str) -> None:
    """`PR`: how large a body may be unrolled below a loop, said as MetaSchedule says it."""
    key, value, *implicit = text.split("$")
    if key != "auto_unroll_max_step":
        raise ReplayError("unknown-step", f"no pragma is called {key!r}")
    loop = next((loop.rv for loop in stage.loops[iterator:] if loop.rv is not None), None)
    if int(value) and loop is not None:
        sch.annotate(loop, "pragma_auto_unroll_max_step", int(value))
        sch.annotate(loop, "pragma_unroll_explicit", int(not implicit))


LOOP_STEPS: dict[str, Callable[..., None]] = {
    "SP": split,
    "FSP": follow_split,
    "FFSP": follow_fused_split,
    "RE": reorder,
    "FU": fuse,
    "AN": annotate,
    "PR": pragma,
}
"""What a step does, as a function of the schedule, the stage, all steps of the record and the step's operands."""


def _made_real(sch: Any, stage: Stage, iterator: int) -> Any:
    """The loop of an iterator, made anew where it was left out."""
    loop = stage.loops[iterator]
    if loop.rv is None:
        inner = next((other.rv for other in stage.loops[iterator:] if other.rv is not None), stage.block)
        loop.rv = sch.add_unit_loop(inner)
    return loop.rv


def _split(
    sch: Any, stage: Stage, iterator: int, lengths: list[int], *, inner_to_outer: bool, fixed: bool = False
) -> None:
    loop = stage.loops[iterator]
    if stage.target is None or fixed:
        rest = ceil(loop.extent / prod(lengths))
        parts: list[int | None] = [rest, *lengths] if inner_to_outer else [*lengths, rest]
    else:
        parts = _clamped(loop.extent, lengths, inner_to_outer=inner_to_outer)
    real = [part for part in parts if part is not None]
    loops = iter(sch.split(loop.rv, real) if len(real) > 1 else [loop.rv])
    made = [Loop(None, 1) if part is None else Loop(next(loops), part) for part in parts]
    stage.loops[iterator : iterator + 1] = made


def _clamped(extent: int, lengths: list[int], *, inner_to_outer: bool) -> list[int | None]:
    """Factors outer to inner of a moved stage's loop; None for a loop that nothing is left for."""
    parts: list[int | None] = []
    for length in reversed(lengths) if inner_to_outer else lengths:
        part = min(length, extent)
        parts.append(part if extent > 1 or not parts else None)
        extent = ceil(extent / part)
    parts.append(extent if extent > 1 else None)
    return parts[::-1] if inner_to_outer else parts


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
