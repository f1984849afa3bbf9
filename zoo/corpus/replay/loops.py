"""Ansor's steps on the loops of one stage: split, reorder, fuse, annotate, pragma."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

from .errors import ReplayError

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
