"""The rows of a design space: those that no decision changes, and those that are looked up by their numbers."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from ..primitives import NONE, Primitive
from ..primitives.late import Decision, Late
from ..primitives.scope import Draft
from .encoder import MARKS, crop
from .late_numbers import LateNumbers
from .rows import RowLayout, encode

_LIMIT = 1 << 18


class RowSkeleton:
    """The matrix of a template's candidates, less the hardware row.

    A row that waits for decisions is encoded once for each set of numbers it ever gets. It is found by a hash of 64
    bits of them (a sum of products with random odd numbers), for all rows of all candidates in one search: two sets
    of a million share one with a probability of 1e-7.

    Args:
        drafts: the primitives, open in the decisions.
        layout: where things stand in a row.
        rows: at most so many primitives are kept.
    """

    def __init__(self, drafts: tuple[Draft, ...], layout: RowLayout, rows: int) -> None:
        self._layout, self._rows = layout, rows
        self._drafts = crop(drafts, rows)
        self._base = np.zeros((len(self._drafts), layout.width), np.float32)
        for row, draft in zip(self._base, self._drafts, strict=True):
            if not _is_late(draft):
                row[:] = encode(_settled(draft, []), layout)
        self._places = [i for i, draft in enumerate(self._drafts) if _is_late(draft)]
        numbers = [[n for n in self._drafts[i].numbers if isinstance(n, Late)] for i in self._places]
        self._late = LateNumbers([n for row in numbers for n in row])
        self._ends = np.cumsum([0, *map(len, numbers)])
        self._marks = _late_marks(drafts) if len(drafts) > rows else []
        rng = np.random.default_rng(0)
        self._odd = rng.integers(0, 1 << 63, self._ends[-1], np.uint64) * np.uint64(2) + np.uint64(1)
        self._salt = rng.integers(0, 1 << 63, len(self._places), np.uint64)
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._keys = np.array([np.iinfo(np.uint64).max])  # never searched past the end
        self._table = np.zeros((1, self._layout.width), np.float32)

    def fill(self, decisions: Sequence[Sequence[Decision]], out: np.ndarray) -> bool:
        """Writes the rows into matrices (N, rows, width) of zeros; False when decisions choose what is cropped.

        Raises:
            TraceFormatError: a decision is not what its instruction may answer.
        """
        if self._marks and (LateNumbers(self._marks).values(decisions) == NONE).any():
            return False
        used = len(self._drafts)
        out[:, :used] = self._base
        if self._places:
            out[:, self._places] = self._lookup(self._late.values(decisions))
        running = self._layout.running
        out[:, :used, running] = np.cumsum(out[:, :used, running], axis=1)
        return True

    def _lookup(self, values: np.ndarray) -> np.ndarray:
        """Rows (N, late rows, width) by the late numbers (N, numbers) of all of them."""
        keys = np.add.reduceat(values.view(np.uint64) * self._odd, self._ends[:-1], axis=1) + self._salt
        with self._lock:
            if len(self._keys) > _LIMIT:
                self._reset()
            at = np.searchsorted(self._keys, keys)
            missing = self._keys[at] != keys
            if missing.any():
                self._learn(keys, missing, values)
                at = np.searchsorted(self._keys, keys)
            return self._table[at]

    def _learn(self, keys: np.ndarray, missing: np.ndarray, values: np.ndarray) -> None:
        programs, rows = np.nonzero(missing)
        new, first = np.unique(keys[missing], return_index=True)
        made = [
            encode(_settled(self._drafts[self._places[j]], values[i, self._ends[j] : self._ends[j + 1]]), self._layout)
            for i, j in zip(programs[first].tolist(), rows[first].tolist(), strict=True)
        ]
        keys, table = np.concatenate([self._keys, new]), np.concatenate([self._table, made])
        order = np.argsort(keys, kind="stable")
        self._keys, self._table = keys[order], table[order]


def _is_late(draft: Draft) -> bool:
    return any(isinstance(number, Late) for number in draft.numbers)


def _late_marks(drafts: Sequence[Draft]) -> list[Late]:
    """Limits of marks that are decided: one that is `NONE` is cropped sooner than others."""
    decided = [draft.numbers[2] for draft in drafts if draft.kind in MARKS and len(draft.numbers) == 3]
    return [number for number in decided if isinstance(number, Late)]


def _settled(draft: Draft, values: Sequence[int] | np.ndarray) -> Primitive:
    """The primitive, its late numbers taken from `values` in order."""
    late = iter([int(value) for value in values])
    return Primitive(draft.kind, tuple(next(late) if isinstance(n, Late) else n for n in draft.numbers), draft.names)
