"""One primitive -> one row of numbers: the layout of the TLP and TCL matrices (TLP 4.1, TCL 5.1).

A row starts with what the primitive is, then its numbers, then its names:

| CPU column | GPU column | holds                                                     | encoding                    |
|------------|------------|-----------------------------------------------------------|-----------------------------|
| 0 to 7     | 0 to 7     | group of the kind: split, loop order, mark, unroll,       | one-hot                     |
|            |            | location, inline, copy, other (`GROUPS`)                  |                             |
| 8          | 8          | kind within its group                                     | (place + 1) / group size    |
| 9          | 9          | block (`NONE`: the whole program)                         | index                       |
| 10         | 10         | loop, or location of a compute-at, or count of a Reorder  | index                       |
| 11         | 11         | value: extent of a split loop or a thread axis, unroll    | size                        |
|            |            | limit, target block, count of a Fuse, ...                 |                             |
| 12 to 15   | 12 to 16   | factors of a split, outermost first (or further numbers)  | size                        |
| 16         | 17         | first name, when it is a known one (`KNOWN_NAMES`)        | (place + 1) / 32            |
| 17         | 18         | digest of what has no column: block names, other names,   | 24 bits of a CRC, in (0, 1] |
|            |            | long orders, numbers out of range; 0 when all is shown    |                             |
| 18         |            | largest power of two that divides the innermost factor    | size                        |
| 19         |            | outer tiles so far: product of spatial first factors      | log2 / 16, running          |
| 20         | 19         | inner tile so far: product of the two innermost spatial   | log2 / 16, running          |
|            |            | factors (registers a thread on a GPU)                     |                             |
| 21         |            | inner reduction so far: product of the innermost factors  | log2 / 16, running          |
|            |            | of reductions                                             |                             |

- index: (x + 3) / 16, so that -2, -1 and 0 differ from an absent number, which is 0.
- size: (1 + log2 x) / 8 for x > 0, 1/16 for 0, the negative of |x| below 0: products become sums, 5.7e7
  becomes 3.3 (raw integers of that size made training diverge), and no present number is 0.
- A split with 4 or more factors is taken for a spatial one, with fewer for a reduction.
- Running columns go on through later rows, so the last rows hold the program's totals.
"""

import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log2
from typing import TypeVar

import numpy as np

from ..primitives import NONE, Primitive, PrimitiveSequence
from ..primitives.scope import Draft

GROUPS: tuple[tuple[str, ...], ...] = (
    ("Split", "LoopPartition"),
    ("Fuse", "Merge", "Reorder", "ReorderBlockIterVar", "AddUnitLoop"),
    ("Bind", "Parallel", "Vectorize"),
    ("Unroll",),
    ("ComputeAt", "ReverseComputeAt"),
    ("ComputeInline", "ReverseComputeInline"),
    (
        *("CacheRead", "CacheWrite", "ReindexCacheRead", "ReindexCacheWrite", "CacheInplace", "CacheIndex"),
        *("ReIndex", "ReadAt", "WriteAt", "RollingBuffer"),
    ),
    (
        *("RFactor", "DecomposeReduction", "FuseReductionEpilogue", "StorageAlign", "SetScope"),
        *("UnsafeSetDType", "TransformLayout", "TransformBlockLayout", "DecomposePadding", "PadEinsum"),
        *("UnsafeHideBufferAccess", "AnnotateBufferAccess", "Blockize", "Tensorize", "Annotate", "Unannotate"),
    ),
)
"""The vocabulary in eight groups, one column each. Part of the schema: a change raises its version."""

KNOWN_NAMES: tuple[str, ...] = (
    *("global", "shared", "local", "shared.dyn", "vthread.x", "vthread.y", "vthread.z"),
    *("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z"),
    *("explicit", "implicit", "pragma", "meta_schedule.tiling_structure", "meta_schedule.cooperative_fetch"),
    *("meta_schedule.thread_extent_low_inclusive", "meta_schedule.thread_extent_high_inclusive"),
    *("meta_schedule.random_compute_producer", "meta_schedule.cache_type", "meta_schedule.auto_tensorize"),
    *("wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator", "warp_execution", "buffer_dim_align"),
)
"""Names with a token of their own. Part of the schema, as `GROUPS`; at most 32."""

_PLACE = {kind: (g, k) for g, group in enumerate(GROUPS) for k, kind in enumerate(group)}
_TOKEN = {name: (i + 1) / 32 for i, name in enumerate(KNOWN_NAMES)}
_INDEX_RANGE = range(-2, 30)
_EXACT = 1 << 18  # float32 tells neighbours apart on the size scale up to here


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Columns of a row, see the table above: in all, and for factors.

    `derived`: whether the CPU's columns for alignment, outer tiles and inner reduction are there.
    """

    width: int
    factors: int
    derived: bool

    @property
    def name(self) -> int:
        """Column of the first name; the digest follows it."""
        return 12 + self.factors

    @property
    def running(self) -> slice:
        """Columns that are summed along the program."""
        return slice(self.width - (3 if self.derived else 1), self.width)


CPU = RowLayout(22, 4, True)
GPU = RowLayout(20, 5, False)


def encode(primitive: Primitive, layout: RowLayout) -> np.ndarray:
    """Return the primitive's row, float32 of shape (width,); running columns hold its own contribution."""
    row = np.zeros(layout.width, np.float32)
    group, index = _PLACE[primitive.kind]
    row[group] = 1
    row[8] = (index + 1) / len(GROUPS[group])
    shown, hidden = _arrange(primitive, 3 + layout.factors)
    for i, number in enumerate(shown):
        row[9 + i] = (min(max(number, -2), 29) + 3) / 16 if i < 2 else size_code(number)
    names = primitive.names  # of which the first may have a token, and the digest tells the others
    row[layout.name], unknown = (_TOKEN[names[0]], names[1:]) if names and names[0] in _TOKEN else (0.0, names)
    if hidden or unknown:
        text = "\0".join([*map(str, hidden), "", *unknown])
        row[layout.name + 1] = ((zlib.crc32(text.encode()) >> 8) + 1) / (1 << 24)
    if group == 0:
        _derive(row, primitive.numbers[3:], layout)
    return row


def size_code(number: int) -> float:
    """An extent, a factor or a limit on a log scale, never zero."""
    if number == 0:
        return 1 / 16
    return (1 + log2(abs(number))) / (8 if number > 0 else -8)


def _arrange(primitive: Primitive, room: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The numbers that get columns, and the numbers that only the digest tells."""
    numbers = primitive.numbers
    if primitive.kind == "Reorder" and numbers:
        return (numbers[0], len(numbers) - 1), numbers
    if primitive.kind == "Fuse" and len(numbers) > 1:
        block, first, count = numbers[0], numbers[1], len(numbers) - 1
        adjacent = numbers[1:] == tuple(range(first, first + count))
        shown, hidden = (block, first, count), () if adjacent else numbers
    else:
        shown, hidden = numbers[:room], numbers[room:]
    out_of_range = any(n not in _INDEX_RANGE for n in shown[:2]) or any(abs(n) > _EXACT for n in shown[2:])
    return shown, numbers if out_of_range else hidden


def _derive(row: np.ndarray, factors: Sequence[int], layout: RowLayout) -> None:
    """The columns computed from a split's factors; an open factor counts as 1."""
    logs = [log2(f) if f > 0 else 0.0 for f in factors]
    if not logs:
        return
    spatial = len(logs) >= 4
    inner, last = sum(logs[-2:]) if spatial else 0.0, factors[-1]
    if not layout.derived:
        row[layout.running] = inner / 16
        return
    row[layout.width - 4] = size_code(last & -last) if last > 0 else 0.0
    row[layout.running] = (logs[0] if spatial else 0.0) / 16, inner / 16, (0.0 if spatial else logs[-1]) / 16


_LIMIT = 1 << 18
_RANK: dict[str, int] = {
    **dict.fromkeys(("Split", "LoopPartition"), 0),
    **dict.fromkeys(("Fuse", "Merge", "Reorder", "ReorderBlockIterVar", "AddUnitLoop", "SetScope"), 3),
    **dict.fromkeys(("ComputeInline", "ReverseComputeInline", "Unannotate"), 4),
}
_COMPUTE_AT = ("ComputeAt", "ReverseComputeAt")
MARKS = ("Unroll", "Parallel", "Vectorize")
_Step = TypeVar("_Step", Primitive, Draft)


def crop(primitives: tuple[_Step, ...], rows: int) -> tuple[_Step, ...]:
    """At most `rows` primitives, in order; what goes first is what differs least among a task's programs.

    That is: inlinings, then loop orders, then loops unrolled whole and constant annotations, then caches,
    bindings and fixed compute locations; what the search decides (splits, limits of unrolling, sampled
    locations, vector width of a cooperative fetch) goes last.
    """
    if len(primitives) <= rows:
        return primitives
    order = sorted(range(len(primitives)), key=lambda i: _rank(primitives[i]))
    return tuple(primitives[i] for i in sorted(order[:rows]))


def _rank(primitive: Primitive | Draft) -> int:
    kind = primitive.kind
    if kind in _COMPUTE_AT:
        return 0 if primitive.numbers[2:] == (NONE,) else 1
    if kind in MARKS:
        return 2 if primitive.numbers[2:] == (NONE,) else 0
    if kind == "Annotate":
        return 0 if primitive.names[:1] == ("meta_schedule.cooperative_fetch",) else 2
    return _RANK.get(kind, 1)


class Encoder:
    """Rows of all primitives seen so far under one layout."""

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._table = np.zeros((256, self.layout.width), np.float32)
        self._used = 1  # row 0 is the padding
        self._by_value: dict[Primitive, int] = {}
        self._by_id: dict[int, int] = {}
        self._held: list[Primitive] = []  # an id stays valid while its object lives

    def matrices(self, sequences: Sequence[PrimitiveSequence], rows: int) -> np.ndarray:
        """Matrices of shape (N, rows, width), float32; rows past the end are zero."""
        lists = [crop(s.primitives, rows) for s in sequences]
        filled = np.arange(rows) < np.fromiter(map(len, lists), np.intp, len(lists))[:, None]
        with self._lock:
            if len(self._held) > _LIMIT:
                self._reset()
            indices = np.zeros((len(lists), rows), np.intp)
            flat = [p for primitives in lists for p in primitives]
            known = map(self._by_id.get, map(id, flat))
            indices[filled] = [self._row_of(p) if at is None else at for p, at in zip(flat, known, strict=True)]
            out = self._table[indices]
        running = self.layout.running
        out[:, :, running] = np.cumsum(out[:, :, running], axis=1) * filled[:, :, None]
        return out

    def _row_of(self, primitive: Primitive) -> int:
        at = self._by_value.get(primitive)
        if at is None:
            at = self._by_value[primitive] = self._used
            if at == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._table[at] = encode(primitive, self.layout)
            self._used += 1
        self._by_id[id(primitive)] = at
        self._held.append(primitive)
        return at


@cache
def encoder(kind: str) -> Encoder:
    """Return the encoder of a kind of device, `cpu` or `gpu`."""
    return Encoder(CPU if kind == "cpu" else GPU)
