"""A program's loop nest, worked out from its primitives without lowering it.

All programs of a design space share the *structure* of their sequences (kinds, blocks, loops) and differ in
*values* (factors, extents, unroll limits). The loops are therefore followed once for a structure: splits make
loops, reorders and fusions move them, bindings say what they become. What comes out is an `Outline`: which
values make up the tile of which axis at which level. A program's features are then sums of logarithms of its
values, for a whole batch one matrix product (see `nest_columns`).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..primitives import Primitive
from ..primitives.scope import Draft

Shape = tuple[str, tuple[int, ...], int, tuple[str, ...]]
"""A primitive without its values: kind, positions, how many values follow, names."""

LEVELS = {"blockIdx": 0, "vthread": 1, "threadIdx": 2}
"""Levels of a spatial axis: blocks, virtual threads, threads, then two of loops inside a thread."""
SERIAL = 3
SPATIAL_LEVELS, REDUCTION_LEVELS = 5, 3
_UNBOUND = {2: (0, 4), 3: (0, 3, 4), 4: (0, 2, 3, 4), 5: (0, 1, 2, 3, 4)}
"""Levels of the factors of an axis that no thread axis takes: the two inner ones of a CPU program's are serial."""
_LOCATED = ("ComputeAt", "ReverseComputeAt")
_CACHES = ("CacheRead", "CacheWrite")
_MAKERS = (
    *(*_CACHES, "ReadAt", "WriteAt", "RFactor", "ReIndex", "ReindexCacheRead", "ReindexCacheWrite"),
    *("DecomposeReduction", "Blockize"),
)
_WHOLE = (*_CACHES, "Reorder", "Fuse", "Merge")


def shape_of(primitive: Primitive | Draft) -> tuple[Shape, tuple[Any, ...]]:
    """A primitive as its structure and its values; those of a draft may wait for decisions."""
    kind = primitive.kind
    numbers: tuple[Any, ...] = primitive.numbers
    if kind in _WHOLE:
        return (kind, numbers, 0, primitive.names), ()
    if kind in _LOCATED:  # (block, location, target): the location is a value, for MetaSchedule may have sampled it
        return (kind, (numbers[0], *numbers[2:]), 1, primitive.names), numbers[1:2]
    return (kind, numbers[:2], len(numbers[2:]), primitive.names), numbers[2:]


@dataclass(slots=True)
class Part:
    """One factor of a split axis: where its value stands and what its loop became."""

    value: int
    level: int | None = None


@dataclass(slots=True, eq=False)
class Axis:
    """A loop that was split: extent, then factors from the outermost."""

    block: int
    extent: int
    parts: list[Part]
    nested: bool

    @property
    def values(self) -> list[int]:
        return [part.value for part in self.parts]


class Outline:
    """Meaning of the values of a structure, whose loops are followed once.

    Attributes:
        spatial: axes of the tiled block, in order; reduction: its reduction axes.
        others: further axes, of other blocks or split again.
        unrolls, limits, vectors, parallels, fetches, locations: indices of the values of such primitives; a
            program-wide `limit` of vectors is not the length of one vector; locations are those of CPU programs,
            where they are decisions (on a GPU they follow from the tiling, and frameworks count loops differently).
        shared, local: how many such caches there are; binds: loops bound to a thread axis (of a GPU program).
        lanes: threads that execute an innermost part together: 32 where tensor cores compute, else 1.
        tensor_core: 1 in a program that computes with them; its loops that are software pipelines; 1 where `cp.async`
            fills one; 1 where an operand is read transposed.
        counts: primitives by kind.
        size: number of values.
    """

    def __init__(self, shapes: Iterable[Shape]) -> None:
        self.unrolls, self.limits, self.vectors = list[int](), list[int](), list[int]()
        self.parallels, self.fetches, self.locations = list[int](), list[int](), list[int]()
        self.shared = self.local = self.binds = self.size = self.blocks = 0
        self.lanes, self.tensor_core = 1, [0, 0, 0, 0]
        self.counts = Counter[str]()
        self.nests: dict[int, list[list[Part]]] = {}  # of each block its loops, each the factors that it consists of
        self.axes: list[Axis] = []
        self.copies: set[int] = set()  # blocks that copy into shared memory
        self.written: list[tuple[int, int]] = []  # (block, the copy of its output)
        for shape in shapes:
            self._follow(*shape)
        self._sort()

    def _follow(self, kind: str, at: tuple[int, ...], count: int, names: tuple[str, ...]) -> None:
        value = self.size
        self.size += count
        self.counts[kind] += 1
        # By the number of blocks seen, the next one that is made will be called.
        mentioned = at if kind in _LOCATED else (*at[:1], *at[2:]) if kind in _CACHES else at[:1]
        self.blocks = max(self.blocks, 1 + max(mentioned, default=-1))
        if kind in ("Split", "LoopPartition") and count > 1:
            self._split(at[0], at[1], value, count - 1)
        elif kind == "Reorder":
            self._reorder(at[0], at[1:])
        elif kind in ("Fuse", "Merge"):
            self._fuse(at[0], at[1:])
        elif kind == "Bind" and names:
            self._bind(at[0], at[1], names[0].partition(".")[0])
        elif kind in ("CacheRead", "CacheWrite", "ReadAt"):
            self._cache(kind, at[0], names)
        elif kind == "Annotate" and names:
            self._annotate(names, value, count)
        elif kind == "Vectorize" and count:
            self._vectorize(at, value)
        elif kind in ("Unroll", "Parallel") and count:
            (self.unrolls if kind == "Unroll" else self.parallels).append(value)
        elif kind in _LOCATED and count:
            self.locations.append(value)
        self.blocks += kind in _MAKERS

    def _loops(self, block: int, upto: int) -> list[list[Part]]:
        nest = self.nests.setdefault(block, [])
        nest.extend([] for _ in range(upto + 1 - len(nest)))
        return nest

    def _split(self, block: int, loop: int, value: int, factors: int) -> None:
        if loop < 0:
            return
        nest = self._loops(block, loop)
        parts = [Part(value + 1 + i) for i in range(factors)]
        self.axes.append(Axis(block, value, parts, nested=bool(nest[loop])))
        nest[loop : loop + 1] = [[part] for part in parts]

    def _reorder(self, block: int, order: tuple[int, ...]) -> None:
        if not order or min(order) < 0:
            return
        nest = self._loops(block, max(order))
        moved = [nest[i] for i in order]
        for at, loop in zip(sorted(order), moved, strict=True):
            nest[at] = loop

    def _fuse(self, block: int, positions: tuple[int, ...]) -> None:
        if not positions or min(positions) < 0:
            return
        nest = self._loops(block, max(positions))
        fused = [part for i in positions for part in nest[i]]
        for i in sorted(positions, reverse=True):
            del nest[i]
        nest.insert(min(positions), fused)

    def _bind(self, block: int, loop: int, thread: str) -> None:
        level = LEVELS.get(thread)
        if level is None or loop < 0:
            return
        self.binds += 1
        for part in self._loops(block, loop)[loop]:
            part.level = level

    def _cache(self, kind: str, block: int, names: tuple[str, ...]) -> None:
        if kind == "CacheWrite":
            self.written.append((block, self.blocks))
        if names[:1] == ("local",):
            self.local += 1
        elif names and names[0].startswith("shared"):
            self.shared += 1
            self.copies.add(self.blocks)

    def _annotate(self, names: tuple[str, ...], value: int, count: int) -> None:
        tensor, key = self.tensor_core, names[0]
        if key == "meta_schedule.cooperative_fetch" and count:
            self.fetches.append(value)
        elif key == "warp_execution":
            self.lanes, tensor[0] = 32, 1
        elif key == "software_pipeline_stage":
            tensor[1] += 1
        elif key == "software_pipeline_async_stages":
            tensor[2] = 1
        elif key == "meta_schedule.auto_tensorize":
            tensor[3] |= any("_trans" in name for name in names[1:])

    def _vectorize(self, at: tuple[int, ...], value: int) -> None:
        """A limit for the whole program, or one loop, whose innermost factor is then the vector's length."""
        if at[1] < 0:
            self.limits.append(value)
        elif parts := self._loops(at[0], at[1])[at[1]]:
            (self.fetches if at[0] in self.copies else self.vectors).append(parts[-1].value)

    def _sort(self) -> None:
        """Sort the axes into roles: the tiled block is the one split into most parts."""
        own = [axis for axis in self.axes if not axis.nested]
        weights = Counter[int]()
        for axis in own:
            if axis.block not in self.copies:
                weights[axis.block] += len(axis.parts)
        main = max(weights, key=lambda b: (weights[b], -b), default=-1)
        tiled = [axis for axis in own if axis.block == main]
        most = max((len(axis.parts) for axis in tiled), default=0)
        self.spatial = [axis for axis in tiled if len(axis.parts) == most]
        # Reductions are tiled after the spatial axes.
        after = tiled[tiled.index(self.spatial[0]) :] if tiled else []
        self.reduction = [axis for axis in after if len(axis.parts) < most]
        if not self.reduction:  # or in a copy of the tiled block, as AutoTVM does it
            least, others = min(most - 1, REDUCTION_LEVELS), {main, *self.copies}
            self.reduction = [axis for axis in own if len(axis.parts) <= least and axis.block not in others]
        # The rest are axes of neither the tiled block nor a copy of it, which repeats its tiles, nor a fetch.
        known = {id(axis) for axis in (*self.spatial, *self.reduction)}
        repeated = {b for pair in self.written if main in pair for b in pair} | self.copies
        self.others = [a for a in self.axes if id(a) not in known and a.block not in repeated - {main}]
        if self.binds:
            self.locations.clear()


def spatial_levels(axis: Axis) -> list[tuple[int, int]]:
    """(level, value) of each factor of a spatial axis, outermost first."""
    parts = axis.parts
    if all(part.level is None for part in parts):
        levels = _UNBOUND.get(len(parts), (*range(SPATIAL_LEVELS), *[SERIAL + 1] * len(parts)))
        return list(zip(levels, axis.values, strict=False))
    if len(parts) == SPATIAL_LEVELS and parts[1].level != 0:  # tensor-core programs spread blocks over two axes
        return list(enumerate(axis.values))
    serial = iter((SERIAL, *[SERIAL + 1] * len(parts)))
    return [(next(serial) if part.level is None else part.level, part.value) for part in parts]


def reduction_levels(axis: Axis) -> list[tuple[int, int]]:
    """(level, value) of each factor of a reduction axis, the innermost always at the last level."""
    shift = max(0, REDUCTION_LEVELS - len(axis.parts))
    places = [0, *range(1 + shift, REDUCTION_LEVELS)] if shift else range(len(axis.parts))
    return [(min(i, REDUCTION_LEVELS - 1), part.value) for i, part in zip(places, axis.parts, strict=False)]
