"""Sequences -> matrices, fast: every distinct primitive is encoded once, a batch is then one gather.

The evolutionary search scores thousands of candidates a round, and they share most of their primitives.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ..primitives import NONE, Primitive, PrimitiveSequence
from ..primitives.scope import Draft
from .rows import RowLayout, encode

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
            places = np.zeros((len(lists), rows), np.intp)
            places[filled] = self._places([p for primitives in lists for p in primitives])
            out = self._table[places]
        running = self.layout.running
        out[:, :, running] = np.cumsum(out[:, :, running], axis=1) * filled[:, :, None]
        return out

    def _places(self, primitives: list[Primitive]) -> list[int]:
        places = list(map(self._by_id.get, map(id, primitives)))
        return [self._place(p) if at is None else at for p, at in zip(primitives, places, strict=True)]

    def _place(self, primitive: Primitive) -> int:
        at = self._by_value.get(primitive)
        if at is None:
            at = self._by_value[primitive] = self._append(encode(primitive, self.layout))
        self._by_id[id(primitive)] = at
        self._held.append(primitive)
        return at

    def _append(self, row: np.ndarray) -> int:
        if self._used == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        self._table[self._used] = row
        self._used += 1
        return self._used - 1
