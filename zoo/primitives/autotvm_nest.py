"""A small schedule that tells every step it is given: what the AutoTVM templates are written with.

A `Stage` keeps its loops with their extents, so that a template names loops and never counts positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .language import NONE, REST, Primitive, TraceFormatError, primitive


@dataclass(eq=False, slots=True)
class Loop:
    """A loop, by identity; `extent` 0 is unknown."""

    extent: int


class Schedule:
    """The primitives so far, and the program's knobs."""

    def __init__(self, entity: Sequence[Any]) -> None:
        self.primitives: list[Primitive] = []
        self.blocks = 0
        try:
            self._knobs = {name: (kind, value) for name, kind, value in entity}
        except (TypeError, ValueError) as error:
            raise knob_error("the entity is no list of [name, kind, value]", entity) from error

    def stage(self, name: str, *extents: int) -> Stage:
        """Return a block of the workload itself with these loops; the first primitive about it carries its name."""
        return Stage(self, name, extents)

    def tile(self, name: str, extent: int, parts: int, exact: bool = True) -> tuple[int, ...]:
        """Return the factors of a split knob, outermost first; unless `exact` the outermost is rounded up.

        Raises:
            TraceFormatError: no such knob, or its factors do not fit the loop.
        """
        value = self._value(name, "sp")
        if not isinstance(value, list) or len(value) != parts or any(type(factor) is not int for factor in value):
            raise knob_error(f"no split in {parts}", [name, "sp", value])
        inner = value[1:]
        if (inner and min(inner) < 1) or (value[0] < 1 and value[0] != REST):
            raise knob_error("only the outermost factor can be left open", [name, "sp", value])
        known = prod(inner)
        outer = -(-extent // known)
        if (exact and known * outer != extent) or value[0] not in (REST, outer):
            raise knob_error(f"the factors do not give {extent}", [name, "sp", value])
        return (outer, *inner)

    def choice(self, name: str) -> int:
        """Return the number (or truth value) that a plain knob chooses."""
        value = self._value(name, "ot")
        if not isinstance(value, int):
            raise knob_error("an integer was expected", [name, "ot", value])
        return int(value)

    def has(self, name: str) -> bool:
        return name in self._knobs

    def annotations(self, name: str, loops: int) -> list[str]:
        """Return one of `none`, `unroll`, `vec` for each loop."""
        value = self._value(name, "an")
        if not isinstance(value, list) or len(value) != loops or not set(map(str, value)) <= {"none", "unroll", "vec"}:
            raise knob_error(f"no annotation of {loops} loops", [name, "an", value])
        return value

    def order(self, name: str, loops: int) -> list[int]:
        value = self._value(name, "re")
        if not isinstance(value, list) or len(value) != loops or set(map(repr, value)) != set(map(repr, range(loops))):
            raise knob_error(f"no permutation of {loops} loops", [name, "re", value])
        return value

    def _value(self, name: str, kind: str) -> Any:
        knob = self._knobs.get(name)
        if knob is None or knob[0] != kind:
            raise knob_error(f"the template needs a knob {name} of kind {kind}", knob and [name, *knob])
        return knob[1]


class Stage:
    """A block and its loops, outermost first."""

    __slots__ = ("_name", "_number", "_schedule", "loops")

    def __init__(self, schedule: Schedule, name: str | None, extents: Sequence[int]) -> None:
        self._schedule, self._name, self._number = schedule, name, NONE
        self.loops = [Loop(extent) for extent in extents]
        if name is None:
            self._number_it()

    def at(self, loop: Loop) -> int:
        return self.loops.index(loop)

    # Loops

    def split(self, loop: Loop, factors: Sequence[int]) -> list[Loop]:
        at, parts = self.at(loop), [Loop(factor) for factor in factors]
        self._add("Split", at, loop.extent, *factors)
        self.loops[at : at + 1] = parts
        return parts

    def split_inner(self, loop: Loop, factor: int) -> list[Loop]:
        """Split off an inner loop of `factor` iterations; the outer one is rounded up."""
        return self.split(loop, (-(-loop.extent // factor), factor))

    def split_outer(self, loop: Loop, parts: int) -> list[Loop]:
        """Split off an outer loop of `parts` iterations; the inner one is rounded up."""
        return self.split(loop, (parts, -(-loop.extent // parts)))

    def fuse(self, *loops: Loop) -> Loop:
        at, fused = self.at(loops[0]), Loop(prod(loop.extent for loop in loops))
        self._add("Fuse", *range(at, at + len(loops)))
        self.loops[at : at + len(loops)] = [fused]
        return fused

    def reorder(self, *loops: Loop) -> None:
        """Put the loops in this order, on the positions that they have now."""
        positions = [self.at(loop) for loop in loops]
        self._add("Reorder", *positions)
        for at, loop in zip(sorted(positions), loops, strict=True):
            self.loops[at] = loop

    def bind(self, axes: str, *loops: Loop) -> None:
        """Bind loops to thread axes, named in one text (`threadIdx.y threadIdx.x`)."""
        for axis, loop in zip(axes.split(), loops, strict=True):
            self._add("Bind", self.at(loop), loop.extent, names=(axis,))

    def parallel(self, loop: Loop) -> None:
        self._add("Parallel", self.at(loop), NONE)

    def vectorize(self, loop: Loop) -> None:
        self._add("Vectorize", self.at(loop), NONE)

    def unroll(self, *loops: Loop) -> None:
        for loop in loops:
            self._add("Unroll", self.at(loop), NONE)

    def unroll_limit(self, loop: Loop, steps: int, explicit: int = 1) -> None:
        """Let the compiler unroll what is under the loop up to so many steps."""
        self._add("Unroll", self.at(loop), steps, names=("explicit" if explicit else "implicit",))

    def annotate(self, kinds: Sequence[str], *loops: Loop) -> None:
        for kind, loop in zip(kinds, loops, strict=True):
            if kind == "unroll":
                self.unroll(loop)
            elif kind == "vec":
                self.vectorize(loop)

    # Blocks

    def inline(self) -> None:
        self._add("ComputeInline")

    def double_buffer(self) -> None:
        self._add("Annotate", NONE, 1, names=("double_buffer",))

    def compute_at(self, target: Stage, loop: Loop, *extents: int, kind: str = "ComputeAt") -> None:
        """Compute the block under a loop of another one; `extents`: what one pass needs of its first loops."""
        self._number_it()
        target._number_it()
        self._add(kind, target.at(loop), target._number, names=target._introduction())
        for own, extent in zip(self.loops, extents, strict=False):
            own.extent = extent

    def cache_write(self, scope: str, spatial: int) -> Stage:
        """Let the block write to a buffer of its own; returns the copy to the true output.

        The copy has the first `spatial` loops, with their extents at this moment.
        """
        self._add("CacheWrite", 0, names=(scope,))
        return Stage(self._schedule, None, [loop.extent for loop in self.loops[:spatial]])

    def cache_read(self, buffer: int, scope: str, *extents: int) -> Stage:
        """Copy what the block reads from its input of that number; returns the copy, with these loops."""
        self._number_it()
        self._add("CacheRead", buffer, self._number, names=(scope,))
        return Stage(self._schedule, None, extents)

    def rfactor(self, loop: Loop, axis: int, spatial: int) -> Stage:
        """Make partial results of a reduction loop; returns the block that computes them.

        In the new block the loop is spatial, at position `axis`; this block keeps its first `spatial` loops and
        the loop as its only reduction.
        """
        self._add("RFactor", self.at(loop), axis)
        others = [own.extent for own in self.loops if own is not loop]
        self.loops = [*self.loops[:spatial], loop]
        return Stage(self._schedule, None, [*others[:axis], loop.extent, *others[axis:]])

    def _number_it(self) -> None:
        if self._number == NONE:
            self._number = self._schedule.blocks
            self._schedule.blocks += 1

    def _introduction(self) -> tuple[str, ...]:
        """The name, for the first primitive that mentions the block."""
        name, self._name = self._name, None
        return () if name is None else (f"@{name}",)

    def _add(self, kind: str, *numbers: int, names: tuple[str, ...] = ()) -> None:
        self._number_it()
        self._schedule.primitives.append(primitive(kind, (self._number, *numbers), names + self._introduction()))


def knob_error(message: str, knob: Any) -> TraceFormatError:
    return TraceFormatError(
        f"{message}: {knob!r:.120}",
        remedy="Pass the template, args and config.entity of one and the same record.",
        instruction=knob,
    )
