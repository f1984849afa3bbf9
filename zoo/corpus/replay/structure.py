"""The loops that a record names, from its numbers alone: a replayed schedule must have the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

from ...primitives.ansor import THREADS
from .ansor import Replayed, Step, split_lengths
from .operators import ReplayError, UnscheduledTask

_Nest = list[tuple[int | None, str]]  # extent and kind of loops from the outermost to the innermost

_KINDS = {0: "", 1: "unroll", 2: "vectorize", 3: "parallel"} | THREADS
_FOR_KINDS = {0: "", 1: "parallel", 2: "vectorize", 3: "unroll"}


@dataclass(eq=False, slots=True)
class _Iterator:
    extent: int | None
    """None where it follows from the region that others read."""
    axis: int
    kind: str = ""
    whole: _Iterator | None = None

    def now(self) -> _Iterator:
        return self if self.whole is None else self.whole.now()


@dataclass(eq=False, slots=True)
class _Stage:
    shape: tuple[int | None, ...]
    reduced: tuple[int | None, ...] = ()
    todo: list[tuple[int, _Stage | None]] = field(default_factory=list)
    iterators: list[_Iterator] = field(default_factory=list)
    target: _Stage | None = None
    at: list[_Iterator] = field(default_factory=list)
    copy: _Stage | None = None  # the stage that does nothing but copy this one
    unroll: int = 0


def verify_structure(task: UnscheduledTask, steps: Sequence[Step], replayed: Replayed) -> None:
    """Compare loop extents, their order, thread bindings and unroll pragmas of every stage.

    What a copy into shared memory (or a padding inside a convolution) covers follows from what is read of it, and
    the record does not give it: of such a stage only the threads are compared, and that its vectors are not longer.

    Raises:
        ReplayError: with the reason `different`, at the first stage that differs.
    """
    for number, (stage, block) in enumerate(zip(_interpret(task, steps), replayed.blocks, strict=True)):
        if block is None:
            continue
        loops = [replayed.schedule.get(rv) for rv in replayed.schedule.get_loops(block)]
        actual, wanted = _actual(loops), _wanted(stage)
        if not _agree(actual, wanted):
            raise ReplayError("different", f"the loops of stage {number} are {actual}, the record says {wanted}")
        unroll = {int(loop.annotations.get("pragma_auto_unroll_max_step", 0)) for loop in loops}
        if stage.unroll not in unroll:
            raise ReplayError("different", f"stage {number} unrolls {max(unroll)}, the record says {stage.unroll}")


def _agree(actual: _Nest, wanted: _Nest) -> bool:
    if all(extent is not None for extent, _ in wanted):
        return actual == wanted
    threads = ([loop for loop in nest if "." in loop[1]] for nest in (actual, wanted))
    lanes, most = ([extent for extent, kind in nest if kind == "vectorize"] for nest in (actual, wanted))
    shorter = None in most or prod(filter(None, lanes)) <= prod(filter(None, most))
    return next(threads) == next(threads) and shorter


def _actual(loops: Sequence[Any]) -> _Nest:
    nest: _Nest = []
    for loop in loops:
        kind = str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else _FOR_KINDS[int(loop.kind)]
        nest.append((int(loop.extent), kind))
    return _without_units(nest)


def _wanted(stage: _Stage) -> _Nest:
    own = [(iterator.extent, iterator.kind) for iterator in stage.iterators]
    return _without_units([*_around(stage), *own])


def _around(stage: _Stage) -> _Nest:
    """Return the loops around a stage: the target's up to the one that it is computed at."""
    if stage.target is None:
        return []
    last = max((stage.target.iterators.index(iterator.now()) for iterator in stage.at), default=-1)
    own = [(iterator.extent, iterator.kind) for iterator in stage.target.iterators[: last + 1]]
    return [*_around(stage.target), *own]


def _without_units(nest: _Nest) -> _Nest:
    return [loop for loop in nest if loop[0] != 1 or "." in loop[1]]


def _interpret(task: UnscheduledTask, steps: Sequence[Step]) -> list[_Stage]:
    stages = [_Stage(info.shape, info.reduced) for info in task.stages]
    for index, (code, stage_id, *operands) in enumerate(steps):
        stage = stages[stage_id]
        if code == "CHW":
            stages.insert(stage_id, _Stage(stage.shape, stage.reduced, copy=stage))
            stage.reduced = ()
        elif code == "CHR":
            stages.insert(stage_id + 1, _Stage(stage.shape))
        elif code == "RF":
            stages.insert(stage_id, _partial(stage, steps, *operands))
        elif code in ("CA", "CR"):
            stage.target = stages[operands[0]] if code == "CA" else None
            if stage.target is not None:
                stage.target.todo.append((index, stage))
        elif code != "CI":
            stage.todo.append((index, None))
    for stage in reversed(stages):
        _work_off(stage, steps)
    return stages


def _partial(stage: _Stage, steps: Sequence[Step], iterator: int, axis: int) -> _Stage:
    """Return the stage of partial results; what is left of the stage itself reduces over the factored loop."""
    _work_off(stage, steps)
    stage.todo = []
    factor = stage.iterators.pop(iterator).extent
    rest = tuple(left.extent for left in stage.iterators[len(stage.shape) :])
    stage.reduced = (factor,)
    return _Stage((*stage.shape[:axis], factor, *stage.shape[axis:]), rest)


def _work_off(stage: _Stage, steps: Sequence[Step]) -> None:
    """Infer the bounds of a stage whose target is worked off, and apply its steps."""
    shape = stage.shape if stage.target is None else _region(stage)
    stage.iterators = [_Iterator(extent, axis) for axis, extent in enumerate((*shape, *stage.reduced))]
    for index, attached in stage.todo:
        code, _, *operands = steps[index]
        if attached is not None:
            attached.at = stage.iterators[: operands[1] + 1]
        elif code == "RE":
            stage.iterators = [stage.iterators[i] for i in operands[0]]
        elif code == "FU":
            _fuse(stage, operands[0][0], operands[0][-1] + 1)
        elif code == "AN":
            stage.iterators[operands[0]].kind = _KINDS.get(operands[1], operands[1])
        elif code == "PR":
            stage.unroll = int(operands[1].split("$")[1])
        else:
            _split(stage, operands[0], *split_lengths(steps, index))


def _region(stage: _Stage) -> tuple[int | None, ...]:
    """Return the region of a stage that one iteration of the loops around it needs."""
    if stage.target is None or stage.copy is not stage.target:
        return (None,) * len(stage.shape)
    outside = {id(iterator.now()) for iterator in stage.at}
    inside = [iterator for iterator in stage.target.iterators if id(iterator) not in outside]
    return tuple(prod(i.extent or 1 for i in inside if i.axis == axis) for axis in range(len(stage.shape)))


def _split(stage: _Stage, at: int, lengths: list[int], inner: bool, fixed: bool) -> None:
    # The extent that a record has beside the factors is no help: mutation changes factors and leaves it stale.
    whole = stage.iterators[at]
    rest = whole.extent
    parts: list[int | None] = []
    for length in reversed(lengths) if inner else lengths:
        parts.append(length if fixed or stage.target is None or rest is None else min(length, rest))
        rest = None if rest is None else ceil(rest / (parts[-1] or 1))
    parts.append(rest)
    stage.iterators[at : at + 1] = [_Iterator(part, whole.axis) for part in (parts[::-1] if inner else parts)]


def _fuse(stage: _Stage, first: int, last: int) -> None:
    parts = stage.iterators[first:last]
    known = [part.extent for part in parts if part.extent is not None]
    whole = _Iterator(prod(known) if len(known) == len(parts) else None, -1)
    for part in parts:
        part.whole = whole
    stage.iterators[first:last] = [whole]
