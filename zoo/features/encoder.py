"""Sequences -> matrices, fast: every distinct primitive is encoded once, a batch is then one gather.

The evolutionary search scores thousands of candidates a round, and they share most of their primitives.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from ..primitives import Primitive, PrimitiveSequence
from .rows import RowLayout, encode

_LIMIT = 1 << 18
_DECIDING = 0
_RANK: dict[str, int] = {
    **dict.fromkeys(("Split", "LoopPartition", "Unroll", "Parallel", "Vectorize", "Bind"), _DECIDING),
    **dict.fromkeys(("ComputeAt", "ReverseComputeAt", "RFactor", "Tensorize"), _DECIDING),
    **dict.fromkeys(("Fuse", "Merge", "Reorder", "ReorderBlockIterVar", "AddUnitLoop"), 2),
    **dict.fromkeys(("ComputeInline", "ReverseComputeInline", "Unannotate"), 3),
}
"""What a crop drops last (0) and first (3); kinds not named are 1."""


def crop(primitives: tuple[Primitive, ...], rows: int) -> tuple[Primitive, ...]:
    """At most `rows` primitives, in order: inlinings go first, then loop orders, decisions last."""
    if len(primitives) <= rows:
        return primitives
    order = sorted(range(len(primitives)), key=lambda i: _RANK.get(primitives[i].kind, 1))
    return tuple(primitives[i] for i in sorted(order[:rows]))


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
