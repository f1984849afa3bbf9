"""The stages of an Ansor program and their iterators, followed step by step without the computation itself.

A record does not say how many stages or iterators there are at the start, nor their extents: both appear when a
step mentions them. An extent is 0 until a step tells it. Stages move in the list when a cache or an rfactor
stage comes in; a stage's block ordinal stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from .errors import TraceFormatError
from .language import REST, Primitive, primitive

_LIMIT = 1024
"""More stages than any network has, more iterators than any stage: a damaged index must not fill the memory."""


@dataclass(slots=True, eq=False)
class Stage:
    """A stage.

    Attributes:
        ordinal: its block number; None while no primitive mentioned it.
        loops: extents of the iterators known so far, 0 where unknown.
        complete: whether `loops` has all of them.
        target: the stage that it is computed at; None at the root.
    """

    ordinal: int | None = None
    loops: list[int] = field(default_factory=list)
    complete: bool = False
    target: Stage | None = None

    def need(self, loop: int) -> None:
        """Makes sure that the iterator of this index exists.

        Raises:
            TraceFormatError: it cannot exist.
        """
        missing = loop + 1 - len(self.loops)
        if loop < 0 or (missing > 0 and self.complete) or missing > _LIMIT:
            raise TraceFormatError(f"a stage of {len(self.loops)} iterators has none at {loop}")
        if missing > 0:
            self.loops += [0] * missing

    def compute_at(self, target: Stage) -> None:
        """Each loop now covers what one pass of a loop of the target needs, an extent that no step tells.

        Raises:
            TraceFormatError: the target is this stage, or is itself computed at it.
        """
        around: Stage | None = target
        while around is not None:
            if around is self:
                raise TraceFormatError("a stage cannot be computed at itself")
            around = around.target
        self.target = target
        self.loops = [0] * len(self.loops)


class State:
    """Stages, the splits made so far, and the primitives told so far."""

    def __init__(self) -> None:
        self.told: list[Primitive] = []
        self.splits: dict[int, tuple[int, Sequence[int]]] = {}
        self._stages: list[Stage] = []
        self._ordinals = 0
        self._copies: dict[Stage, list[tuple[int, Stage]]] = {}

    def stage(self, index: int) -> Stage:
        """The stage that has this index now."""
        if type(index) is not int or not 0 <= index < _LIMIT:
            raise TraceFormatError(f"{index!r:.40} is no stage index")
        while len(self._stages) <= index:
            self._stages.append(Stage())
        return self._stages[index]

    def insert(self, index: int, stage: Stage) -> None:
        """Puts a new stage at an index; it is numbered at once."""
        self._stages.insert(index, stage)
        self.number(stage)

    def number(self, stage: Stage) -> int:
        """The stage's block ordinal, given at the first mention."""
        if stage.ordinal is None:
            stage.ordinal = self._ordinals
            self._ordinals += 1
        return stage.ordinal

    def tell(self, kind: str, *numbers: int, names: tuple[str, ...] = ()) -> None:
        """Adds a primitive."""
        self.told.append(primitive(kind, numbers, names))

    def split(self, index: int, stage: Stage, loop: int, extent: int, lengths: Sequence[int], inner: bool) -> None:
        """Splits an iterator by the lengths of the inner (or outer) parts; the one part left takes the rest.

        Args:
            index: of the step, for the steps that follow this split.
            extent: told by the record; 0 stands for the one known from earlier steps.
            lengths: from the outer part to the inner one, each at least 1.
        """
        stage.need(loop)
        extent = extent or stage.loops[loop]
        rest = -(-extent // prod(lengths)) if extent else REST
        factors = (rest, *lengths) if inner else (*lengths, rest)
        self.tell("Split", self.number(stage), loop, extent, *factors)
        self.splits[index] = extent, lengths
        stage.loops[loop : loop + 1] = factors if extent else [max(f, 0) for f in factors]

    def copied(self, reader: Stage, source: Stage) -> None:
        """Remembers that the primitive told next copies what `reader` reads from `source`."""
        self._copies.setdefault(reader, []).append((len(self.told), source))

    def finish(self) -> tuple[Primitive, ...]:
        """The primitives; buffers that a stage reads are numbered in the order of the stages that make them."""
        for copies in self._copies.values():
            copies.sort(key=lambda copy: self._stages.index(copy[1]))
            for buffer, (at, _) in enumerate(copies):
                told = self.told[at]
                self.told[at] = primitive(told.kind, (told.numbers[0], buffer, *told.numbers[2:]), told.names)
        return tuple(self.told)
