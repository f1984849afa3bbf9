"""Ansor (TVM auto_scheduler, TenSet) transform steps -> primitive sequences.

A step is `[code, stage, ...]`; its indices refer to the stages and iterators of that moment, its step numbers
to earlier steps. Steps that follow other steps (FSP, FFSP) are told with the lengths they take. Ansor's cache
write makes the stage that computes anew and leaves the old one to copy; told is, as MetaSchedule does, one
block that computes on and a new block that copies. No block has a name: steps know none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from .ansor_state import Stage, State
from .errors import TraceFormatError, UnknownInstructionError
from .language import NONE, ROOT, PrimitiveSequence

_REMEDY = "Pass the steps of one auto_scheduler record, record['i'][1][1], whole or cut at their end."
_UNROLL = "auto_unroll_max_step$"
_MARKS = {1: "Unroll", 2: "Vectorize", 3: "Parallel", 11: "Tensorize"}
_THREADS = {4: "vthread.x"} | {
    5 + 2 * i + j: f"{thread}Idx.{axis}" for i, axis in enumerate("xyz") for j, thread in enumerate(("block", "thread"))
}


def from_ansor_steps(steps: Sequence[Any]) -> PrimitiveSequence:
    """Reads the steps of one record (`record["i"][1][1]`), whole or cut at their end; needs no TVM.

    Raises:
        UnknownInstructionError: a step's code is none of Ansor's.
        TraceFormatError: not a list of steps, or a step is malformed; `index` is the step's position.
    """
    if not isinstance(steps, list | tuple):
        raise TraceFormatError(f"no list of steps: {steps!r:.80}", remedy=_REMEDY)
    state = State()
    for index, step in enumerate(steps):
        try:
            _tell(state, index, step)
        except UnknownInstructionError:
            raise
        except TraceFormatError as error:
            raise TraceFormatError(str(error), index=index, instruction=step, remedy=_REMEDY) from error
    return PrimitiveSequence(state.finish(), "ansor")


def _tell(state: State, index: int, step: Any) -> None:
    if not isinstance(step, list | tuple) or len(step) < 2 or not isinstance(step[0], str):
        raise TraceFormatError(f"a step is [code, stage, ...], not {step!r:.80}")
    handler, operands = _HANDLERS.get(step[0], (None, 0))
    if handler is None:
        raise UnknownInstructionError(
            f"{step[0]!r:.40} is no step code of Ansor", index=index, instruction=step, remedy=_REMEDY
        )
    if len(step) != operands + 2:
        raise TraceFormatError(f"{step[0]} takes {operands} operands after the stage, not {len(step) - 2}")
    handler(state, index, step[1], *step[2:])


def _annotate(state: State, _: int, at: int, loop: int, kind: int) -> None:
    stage = _with_loop(state, at, loop)
    _integers(kind)
    if kind in _THREADS:
        state.tell("Bind", state.number(stage), loop, stage.loops[loop], names=(_THREADS[kind],))
    elif kind in _MARKS:
        state.tell(_MARKS[kind], state.number(stage), loop, NONE)
    elif kind != 0:
        raise TraceFormatError(f"{kind} is no iterator annotation of Ansor")


def _pragma(state: State, _: int, at: int, loop: int, text: str) -> None:
    stage = _with_loop(state, at, loop)
    if not isinstance(text, str):
        raise TraceFormatError(f"a pragma is a text, not {text!r:.40}")
    limit = text.removeprefix(_UNROLL)
    if limit != text and limit.isdecimal():
        state.tell("Unroll", state.number(stage), loop, int(limit), names=("explicit",))
    else:
        state.tell("Annotate", state.number(stage), loop, NONE, names=("pragma", text))


def _fuse(state: State, _: int, at: int, loops: list[int]) -> None:
    stage = state.stage(at)
    _integers(*_list(loops))
    first = loops[0] if loops else 0
    if list(loops) != list(range(first, first + len(loops))):
        raise TraceFormatError(f"only neighbours can be fused, not {loops!r:.80}")
    if loops:  # the iterators of a scalar stage are none: they fuse to one of extent 1
        stage.need(first)
        stage.need(loops[-1])
    state.tell("Fuse", state.number(stage), *loops)
    stage.loops[first : first + len(loops)] = [prod(stage.loops[first : first + len(loops)])]


def _reorder(state: State, _: int, at: int, order: list[int]) -> None:
    stage = state.stage(at)
    _integers(*_list(order))
    if sorted(order) != list(range(len(order))) or len(order) < len(stage.loops):
        raise TraceFormatError(f"no order of the stage's iterators: {order!r:.80}")
    if order:
        stage.need(len(order) - 1)
    state.tell("Reorder", state.number(stage), *order)
    stage.loops = [stage.loops[i] for i in order]
    stage.complete = True


def _split(state: State, index: int, at: int, loop: int, extent: int, lengths: list[int], inner: int) -> None:
    _integers(loop, extent, inner, *_list(lengths))
    if extent < 0 or (lengths and min(lengths) < 1):
        raise TraceFormatError(f"a split of extent {extent} by {lengths!r:.80}")
    state.split(index, state.stage(at), loop, extent, lengths, bool(inner))


def _follow(state: State, index: int, at: int, loop: int, source: int, parts: int) -> None:
    extent, lengths = _followed(state, source)
    _integers(loop, parts)
    if not 1 <= parts <= len(lengths):
        raise TraceFormatError(f"a split in {parts + 1} parts cannot follow one in {len(lengths) + 1}")
    stage = state.stage(at)
    stage.need(loop)
    taken = [*lengths[: parts - 1], prod(lengths[parts - 1 :])]
    # What follows has, iterator by iterator, the extents of what it follows.
    state.split(index, stage, loop, stage.loops[loop] or extent, taken, True)


def _follow_fused(state: State, index: int, at: int, loop: int, sources: list[int], level: int, inner: int) -> None:
    _integers(loop, level, inner)
    followed = [_followed(state, source)[1] for source in _list(sources)]
    if not followed or level < 0 or any(level >= len(lengths) for lengths in followed):
        raise TraceFormatError(f"the splits {sources!r:.80} have no common level {level}")
    state.split(index, state.stage(at), loop, 0, [prod(lengths[level] for lengths in followed)], bool(inner))


def _storage_align(state: State, _: int, at: int, loop: int, factor: int, offset: int) -> None:
    stage = _with_loop(state, at, loop)
    _integers(factor, offset)
    state.tell("StorageAlign", state.number(stage), 0, loop, factor, offset)


def _compute_at(state: State, _: int, at: int, target: int, loop: int) -> None:
    stage, other = state.stage(at), _with_loop(state, target, loop)
    stage.compute_at(other)
    state.tell("ComputeAt", state.number(stage), loop, state.number(other))


def _compute_inline(state: State, _: int, at: int) -> None:
    state.tell("ComputeInline", state.number(state.stage(at)))


def _compute_root(state: State, _: int, at: int) -> None:
    stage = state.stage(at)
    stage.target = None
    state.tell("ComputeAt", state.number(stage), ROOT, NONE)


def _cache_read(state: State, _: int, at: int, scope: str, readers: list[int]) -> None:
    source, stages = state.stage(at), [state.stage(reader) for reader in _list(readers)]
    if not stages:
        raise TraceFormatError("a cache read without readers")
    state.copied(stages[0], source)
    ordinals = [state.number(stage) for stage in stages]
    state.tell("CacheRead", ordinals[0], NONE, *ordinals, names=(_scope(scope),))
    state.insert(at + 1, Stage())


def _cache_write(state: State, _: int, at: int, scope: str) -> None:
    stage = state.stage(at)
    state.tell("CacheWrite", state.number(stage), 0, names=(_scope(scope),))
    stage.loops, stage.complete = [], False  # TVM makes both stages anew from the computation
    state.insert(at + 1, Stage())


def _rfactor(state: State, _: int, at: int, loop: int, axis: int) -> None:
    """The new stage goes first; in it the factored iterator is a spatial one, at `axis`."""
    stage = _with_loop(state, at, loop)
    _integers(axis)
    stage.need(axis)
    state.tell("RFactor", state.number(stage), loop, axis)
    loops = stage.loops
    extent = loops.pop(loop)
    state.insert(at, Stage(loops=[*loops[:axis], extent, *loops[axis:]], complete=stage.complete))
    stage.loops, stage.complete = [*loops[:axis], extent], False


def _with_loop(state: State, at: int, loop: int) -> Stage:
    stage = state.stage(at)
    _integers(loop)
    stage.need(loop)
    return stage


def _followed(state: State, step: int) -> tuple[int, Sequence[int]]:
    _integers(step)
    if step not in state.splits:
        raise TraceFormatError(f"step {step} is no earlier split")
    return state.splits[step]


def _integers(*values: Any) -> None:
    for value in values:
        if type(value) is not int:
            raise TraceFormatError(f"an integer was expected, not {value!r:.40}")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TraceFormatError(f"a list was expected, not {value!r:.40}")
    return list(value)


def _scope(value: Any) -> str:
    if not isinstance(value, str):
        raise TraceFormatError(f"a memory scope was expected, not {value!r:.40}")
    return value


_HANDLERS: dict[str, tuple[Callable[..., None], int]] = {
    "AN": (_annotate, 2),
    "FU": (_fuse, 1),
    "PR": (_pragma, 2),
    "RE": (_reorder, 1),
    "SP": (_split, 4),
    "FSP": (_follow, 3),
    "FFSP": (_follow_fused, 4),
    "SA": (_storage_align, 3),
    "CA": (_compute_at, 2),
    "CI": (_compute_inline, 0),
    "CR": (_compute_root, 0),
    "CHR": (_cache_read, 2),
    "CHW": (_cache_write, 1),
    "RF": (_rfactor, 2),
}
"""Step code -> how it is told, and how many operands it has after the stage."""
