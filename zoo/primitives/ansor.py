"""Ansor (TVM auto_scheduler, TenSet) transform steps -> primitive sequences.

A step is `[code, stage, ...]`; its indices refer to the stages and iterators of that moment, its step numbers
to earlier steps. The stages and their iterators are followed step by step without the computation itself: a record
does not say how many there are at the start, nor their extents, and both appear when a step mentions them. An extent
is 0 until a step gives it. Stages move in the list when a cache or an rfactor stage comes in; a stage's block ordinal
stays.

Steps that follow other steps (FSP, FFSP) get the lengths that they take. Ansor's cache write makes the stage that
computes anew and leaves the old one to copy; here, as in MetaSchedule, one block computes on and a new block copies.
No block has a name: steps know none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any

import msgspec

from .language import NONE, REST, ROOT, Primitive, PrimitiveSequence, TraceFormatError, primitive

_REMEDY = "Pass the steps of one auto_scheduler record, record['i'][1][1], whole or cut at their end."
_UNROLL = "auto_unroll_max_step$"
_LIMIT = 1024
"""More stages than any network has, more iterators than any stage: a damaged index must not fill the memory."""

UNROLL, VECTORIZE, PARALLEL = 1, 2, 3
THREADS = {
    **{4: "vthread.x", 5: "blockIdx.x", 6: "threadIdx.x", 7: "blockIdx.y", 8: "threadIdx.y"},
    **{9: "blockIdx.z", 10: "threadIdx.z"},
}
"""The annotations of the step `AN`, by their numbers in a record."""
_MARKS = {UNROLL: "Unroll", VECTORIZE: "Vectorize", PARALLEL: "Parallel", 11: "Tensorize"}


@dataclass(slots=True, eq=False)
class _Stage:
    """A stage."""

    ordinal: int | None = None  # its block number; None while no primitive mentioned it
    loops: list[int] = field(default_factory=list)  # extents of the iterators known so far, 0 where unknown
    complete: bool = False  # whether these are all
    target: _Stage | None = None  # that it is computed at; None at the root

    def need(self, *loops: int) -> None:
        """Make sure that the iterators of these indices exist; raise TraceFormatError where they cannot."""
        for loop in loops:
            missing = loop + 1 - len(self.loops)
            if loop < 0 or (missing > 0 and self.complete) or missing > _LIMIT:
                raise TraceFormatError(f"a stage of {len(self.loops)} iterators has none at {loop}")
            self.loops += [0] * missing


class _State:
    """Stages, the splits so far, and the primitives so far."""

    def __init__(self) -> None:
        self.primitives: list[Primitive] = []
        self.splits: dict[int, tuple[int, Sequence[int]]] = {}
        self._stages: list[_Stage] = []
        self._ordinals = count()
        self._copies: dict[_Stage, list[tuple[int, _Stage]]] = {}

    def stage(self, index: int, *loops: int) -> _Stage:
        """Return the stage that has this index now, and these iterators."""
        if not 0 <= index < _LIMIT:
            raise TraceFormatError(f"{index!r:.40} is no stage index")
        self._stages += [_Stage() for _ in range(index + 1 - len(self._stages))]
        self._stages[index].need(*loops)
        return self._stages[index]

    def insert(self, index: int, stage: _Stage) -> None:
        self._stages.insert(index, stage)
        self.number(stage)

    def number(self, stage: _Stage) -> int:
        """Return the stage's block ordinal, given at the first mention."""
        stage.ordinal = next(self._ordinals) if stage.ordinal is None else stage.ordinal
        return stage.ordinal

    def add(self, kind: str, stage: _Stage, *numbers: int, names: tuple[str, ...] = ()) -> None:
        self.primitives.append(primitive(kind, (self.number(stage), *numbers), names))

    def split(self, index: int, stage: _Stage, loop: int, extent: int, lengths: Sequence[int], inner: bool) -> None:
        """Split an iterator by the lengths of the inner (or outer) parts; the one part left takes the rest.

        The step's `index` is for the steps that follow this split; `extent` 0 stands for the one known from before.
        """
        stage.need(loop)
        extent = extent or stage.loops[loop]
        rest = -(-extent // prod(lengths)) if extent else REST
        factors = (rest, *lengths) if inner else (*lengths, rest)
        self.add("Split", stage, loop, extent, *factors)
        self.splits[index] = extent, lengths
        stage.loops[loop : loop + 1] = factors if extent else [max(f, 0) for f in factors]

    def followed(self, step: int) -> tuple[int, Sequence[int]]:
        """Return extent and lengths of an earlier split."""
        if step not in self.splits:
            raise TraceFormatError(f"step {step} is no earlier split")
        return self.splits[step]

    def copy(self, reader: _Stage, source: _Stage) -> None:
        """Note that the next primitive copies what `reader` reads from `source`."""
        self._copies.setdefault(reader, []).append((len(self.primitives), source))

    def finish(self) -> tuple[Primitive, ...]:
        """Return the primitives; buffers that a stage reads are numbered in the order of the stages that make them."""
        for copies in self._copies.values():
            copies.sort(key=lambda copy: self._stages.index(copy[1]))
            for buffer, (at, _) in enumerate(copies):
                old = self.primitives[at]
                self.primitives[at] = primitive(old.kind, (old.numbers[0], buffer, *old.numbers[2:]), old.names)
        return tuple(self.primitives)


def from_ansor_steps(steps: Sequence[Any]) -> PrimitiveSequence:
    """Read the steps of one record (`record["i"][1][1]`), whole or cut at their end; needs no TVM.

    Raises:
        TraceFormatError: a step is malformed or of an unknown code; `index` is its position.
    """
    if not isinstance(steps, list | tuple):
        raise TraceFormatError(f"no list of steps: {steps!r:.80}", remedy=_REMEDY)
    state = _State()
    for index, step in enumerate(steps):
        try:
            _apply(state, index, step)
        except (TraceFormatError, msgspec.ValidationError) as error:
            facts = {"index": index, "instruction": step, "unknown": getattr(error, "unknown", False)}
            raise TraceFormatError(str(error), remedy=_REMEDY, **facts) from error
    return PrimitiveSequence(state.finish(), "ansor")


def _apply(state: _State, index: int, step: Any) -> None:
    if not isinstance(step, list | tuple) or len(step) < 2 or not isinstance(step[0], str):
        raise TraceFormatError(f"a step is [code, stage, ...], not {step!r:.80}")
    code, *operands = step
    if code not in _STEPS:
        raise TraceFormatError(f"{code!r:.40} is no step code of Ansor", unknown=True)
    handler, form = _STEPS[code]
    handler(state, index, *msgspec.structs.astuple(msgspec.convert(operands, form)))


def _annotate(state: _State, _: int, at: int, loop: int, kind: int) -> None:
    stage = state.stage(at, loop)
    if kind in THREADS:
        state.add("Bind", stage, loop, stage.loops[loop], names=(THREADS[kind],))
    elif kind in _MARKS:
        state.add(_MARKS[kind], stage, loop, NONE)
    elif kind != 0:
        raise TraceFormatError(f"{kind} is no iterator annotation of Ansor")


def _pragma(state: _State, _: int, at: int, loop: int, text: str) -> None:
    stage = state.stage(at, loop)
    limit = text.removeprefix(_UNROLL)
    if limit != text and limit.isdecimal():
        state.add("Unroll", stage, loop, int(limit), names=("explicit",))
    else:
        state.add("Annotate", stage, loop, NONE, names=("pragma", text))


def _fuse(state: _State, _: int, at: int, loops: list[int]) -> None:
    first = loops[0] if loops else 0
    if loops != list(range(first, first + len(loops))):
        raise TraceFormatError(f"only neighbours can be fused, not {loops!r:.80}")
    # The iterators of a scalar stage are none: they fuse to one of extent 1.
    stage = state.stage(at, *loops[:1], *loops[-1:])
    state.add("Fuse", stage, *loops)
    stage.loops[first : first + len(loops)] = [prod(stage.loops[first : first + len(loops)])]


def _reorder(state: _State, _: int, at: int, order: list[int]) -> None:
    stage = state.stage(at)
    if sorted(order) != list(range(len(order))) or len(order) < len(stage.loops):
        raise TraceFormatError(f"no order of the stage's iterators: {order!r:.80}")
    stage.need(*[max(order)] if order else [])
    state.add("Reorder", stage, *order)
    stage.loops = [stage.loops[i] for i in order]
    stage.complete = True


def _split(state: _State, index: int, at: int, loop: int, extent: int, lengths: list[int], inner: int) -> None:
    if extent < 0 or (lengths and min(lengths) < 1):
        raise TraceFormatError(f"a split of extent {extent} by {lengths!r:.80}")
    state.split(index, state.stage(at), loop, extent, lengths, bool(inner))


def _follow(state: _State, index: int, at: int, loop: int, source: int, parts: int) -> None:
    extent, lengths = state.followed(source)
    if not 1 <= parts <= len(lengths):
        raise TraceFormatError(f"a split in {parts + 1} parts cannot follow one in {len(lengths) + 1}")
    stage = state.stage(at, loop)
    taken = [*lengths[: parts - 1], prod(lengths[parts - 1 :])]
    # A stage that follows has, iterator by iterator, the extents of the one that it follows.
    state.split(index, stage, loop, stage.loops[loop] or extent, taken, True)


def _follow_fused(state: _State, index: int, at: int, loop: int, sources: list[int], level: int, inner: int) -> None:
    followed = [state.followed(source)[1] for source in sources]
    if not followed or level < 0 or any(level >= len(lengths) for lengths in followed):
        raise TraceFormatError(f"the splits {sources!r:.80} have no common level {level}")
    state.split(index, state.stage(at), loop, 0, [prod(lengths[level] for lengths in followed)], bool(inner))


def _storage_align(state: _State, _: int, at: int, loop: int, factor: int, offset: int) -> None:
    state.add("StorageAlign", state.stage(at, loop), 0, loop, factor, offset)


def _compute_at(state: _State, _: int, at: int, target: int, loop: int) -> None:
    """Each loop now covers what one pass of a loop of the target needs, an extent that no step gives."""
    stage, other = state.stage(at), state.stage(target, loop)
    around: _Stage | None = other
    while around is not None:
        if around is stage:
            raise TraceFormatError("a stage cannot be computed at itself")
        around = around.target
    stage.target, stage.loops = other, [0] * len(stage.loops)
    state.number(stage)  # before the target
    state.add("ComputeAt", stage, loop, state.number(other))


def _compute_inline(state: _State, _: int, at: int) -> None:
    state.add("ComputeInline", state.stage(at))


def _compute_root(state: _State, _: int, at: int) -> None:
    stage = state.stage(at)
    stage.target = None
    state.add("ComputeAt", stage, ROOT, NONE)


def _cache_read(state: _State, _: int, at: int, scope: str, readers: list[int]) -> None:
    source, stages = state.stage(at), [state.stage(reader) for reader in readers]
    if not stages:
        raise TraceFormatError("a cache read without readers")
    state.copy(stages[0], source)
    ordinals = [state.number(stage) for stage in stages]
    state.add("CacheRead", stages[0], NONE, *ordinals, names=(scope,))
    state.insert(at + 1, _Stage())


def _cache_write(state: _State, _: int, at: int, scope: str) -> None:
    stage = state.stage(at)
    state.add("CacheWrite", stage, 0, names=(scope,))
    stage.loops, stage.complete = [], False  # TVM makes both stages anew from the computation
    state.insert(at + 1, _Stage())


def _rfactor(state: _State, _: int, at: int, loop: int, axis: int) -> None:
    """Put the new stage first; in it the factored iterator is a spatial one, at `axis`."""
    stage = state.stage(at, loop, axis)
    state.add("RFactor", stage, loop, axis)
    loops = stage.loops
    extent = loops.pop(loop)
    state.insert(at, _Stage(loops=[*loops[:axis], extent, *loops[axis:]], complete=stage.complete))
    stage.loops, stage.complete = [*loops[:axis], extent], False


def _form(*types: Any) -> type[msgspec.Struct]:
    fields = [(f"operand{i}", operand) for i, operand in enumerate(types)]
    return msgspec.defstruct("Operands", fields, array_like=True, forbid_unknown_fields=True)


_STEPS: dict[str, tuple[Callable[..., None], type[msgspec.Struct]]] = {
    "AN": (_annotate, _form(int, int, int)),
    "FU": (_fuse, _form(int, list[int])),
    "PR": (_pragma, _form(int, int, str)),
    "RE": (_reorder, _form(int, list[int])),
    "SP": (_split, _form(int, int, int, list[int], int)),
    "FSP": (_follow, _form(int, int, int, int)),
    "FFSP": (_follow_fused, _form(int, int, list[int], int, int)),
    "SA": (_storage_align, _form(int, int, int, int)),
    "CA": (_compute_at, _form(int, int, int)),
    "CI": (_compute_inline, _form(int)),
    "CR": (_compute_root, _form(int)),
    "CHR": (_cache_read, _form(int, str, list[int])),
    "CHW": (_cache_write, _form(int, str)),
    "RF": (_rfactor, _form(int, int, int)),
}
"""Step code -> what it does, and the types of its operands, the stage first."""
