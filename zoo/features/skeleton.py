"""A design space's matrices without its sequences: what all candidates share is worked out once.

The candidates of a design space are one list of primitives whose numbers wait for the sampled decisions. Which
numbers those are, and where they go in a matrix, is known before the first candidate; a batch of candidates is
then a table of integers, and a few array operations make its matrices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ..primitives import NONE, Primitive, PrimitiveSequence
from ..primitives.scope import Atom, Decision, Draft, Late
from .nest import Outline, shape_of
from .nest_columns import PROGRAM_COLUMNS, Plan
from .rows import CPU, GPU, MARKS, RowLayout, crop, encode
from .schema import FeatureSchema, compute_units

if TYPE_CHECKING:
    from ..devices import Device
    from ..primitives.metaschedule import Template


class LateNumbers:
    """Late numbers of one template: a table of what was sampled, and which of its columns each multiplies."""

    def __init__(self, numbers: Sequence[Late]) -> None:
        self.numbers = tuple(numbers)
        atoms = list(dict.fromkeys(atom for number in numbers for atom in number.atoms))
        self._reads: dict[tuple[int, int, tuple[int, ...] | None], list[Atom]] = {}
        for atom in atoms:
            self._reads.setdefault((atom.slot, atom.size, atom.choices), []).append(atom)
        column = {atom: i for i, atom in enumerate(atom for read in self._reads.values() for atom in read)}
        products = [i for i, number in enumerate(numbers) if number.atoms]
        self._others = [i for i, number in enumerate(numbers) if not number.atoms]
        self._products = np.array(products, np.intp)
        self._scales = np.array([numbers[i].scale for i in products], np.int64)
        self._factors = np.array([column[a] for i in products for a in numbers[i].atoms], np.intp)
        self._starts = np.cumsum([0, *[len(numbers[i].atoms) for i in products]])[:-1]

    def values(self, decisions: Sequence[Sequence[Decision]]) -> np.ndarray:
        """Return the numbers of each candidate, (N, len(numbers)) int64; errors as of `Skeleton.features`."""
        out = np.empty((len(decisions), len(self.numbers)), np.int64)
        if not len(decisions) or not self.numbers:
            return out
        table = self._table(decisions)
        if table is None:  # a decision is wrong: the numbers themselves tell which
            out[:] = [[number.value(d) for number in self.numbers] for d in decisions]
            return out
        if len(self._products):
            products = np.multiply.reduceat(table[:, self._factors], self._starts, axis=1)
            out[:, self._products] = products * self._scales
        for i in self._others:
            out[:, i] = [self.numbers[i].value(d) for d in decisions]
        return out

    def _table(self, decisions: Sequence[Sequence[Decision]]) -> np.ndarray | None:
        """Return the sampled numbers, one column an atom; None if some decision is none that its instruction gives."""
        columns = []
        for (slot, size, choices), atoms in self._reads.items():
            answers = [d[slot] for d in decisions]
            columns_of = _tiles(answers, size) if size else _indices(answers, choices)
            if columns_of is None:
                return None
            columns.append(columns_of[:, [atom.item for atom in atoms]])
        return np.concatenate(columns, axis=1) if columns else np.empty((len(decisions), 0), np.int64)


def _tiles(answers: list[Any], size: int) -> np.ndarray | None:
    if set(map(type, answers)) != {tuple} or set(map(len, answers)) != {size}:
        return None
    tiles = np.fromiter(chain.from_iterable(answers), np.int64, len(answers) * size).reshape(-1, size)
    return None if tiles.min() < 1 else tiles


def _indices(answers: list[Any], choices: tuple[int, ...] | None) -> np.ndarray | None:
    if set(map(type, answers)) != {int}:
        return None
    indices = np.array(answers, np.int64)
    low, high = indices.min(), indices.max()
    if choices is None:
        return None if low < -2 else indices[:, None]
    return None if low < 0 or high >= len(choices) else np.array(choices, np.int64)[indices, None]


_LIMIT = 1 << 18
Fill = Callable[[Sequence[Sequence[Decision]], np.ndarray], bool]
"""Writes matrices of candidates by their decisions, if it can."""


class RowSkeleton:
    """The matrix of a template's candidates, less the hardware row.

    A row that waits for decisions is encoded once for each set of numbers it ever gets. It is found by a hash of 64
    bits of them (a sum of products with random odd numbers), for all rows of all candidates in one search: two sets
    of a million share one with a probability of 1e-7. At most `rows` primitives are kept.
    """

    def __init__(self, drafts: tuple[Draft, ...], layout: RowLayout, rows: int) -> None:
        self._layout = layout
        self._drafts = crop(drafts, rows)
        self._base = np.zeros((len(self._drafts), layout.width), np.float32)
        for row, draft in zip(self._base, self._drafts, strict=True):
            if not _is_late(draft):
                row[:] = encode(_settled(draft, []), layout)
        self._places = [i for i, draft in enumerate(self._drafts) if _is_late(draft)]
        numbers = [[n for n in self._drafts[i].numbers if isinstance(n, Late)] for i in self._places]
        self._late = LateNumbers([n for row in numbers for n in row])
        self._ends = np.cumsum([0, *map(len, numbers)])
        # Limits of marks that are decided: one that is `NONE` is cropped sooner than others.
        decided = [draft.numbers[2] for draft in drafts if draft.kind in MARKS and len(draft.numbers) == 3]
        self._late_limits = [n for n in decided if isinstance(n, Late)] if len(drafts) > rows else []
        rng = np.random.default_rng(0)
        self._odd = rng.integers(0, 1 << 63, self._ends[-1], np.uint64) * np.uint64(2) + np.uint64(1)
        self._salt = rng.integers(0, 1 << 63, len(self._places), np.uint64)
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._keys = np.array([np.iinfo(np.uint64).max])  # never searched past the end
        self._table = np.zeros((1, self._layout.width), np.float32)

    def fill(self, decisions: Sequence[Sequence[Decision]], out: np.ndarray) -> bool:
        """Write the rows into matrices (N, rows, width) of zeros; False when decisions choose what is cropped."""
        if self._late_limits and (LateNumbers(self._late_limits).values(decisions) == NONE).any():
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
        rows_made = [
            encode(_settled(self._drafts[self._places[j]], values[i, self._ends[j] : self._ends[j + 1]]), self._layout)
            for i, j in zip(programs[first].tolist(), rows[first].tolist(), strict=True)
        ]
        keys, table = np.concatenate([self._keys, new]), np.concatenate([self._table, rows_made])
        order = np.argsort(keys, kind="stable")
        self._keys, self._table = keys[order], table[order]


def _is_late(draft: Draft) -> bool:
    return any(isinstance(number, Late) for number in draft.numbers)


def _settled(draft: Draft, values: Sequence[int] | np.ndarray) -> Primitive:
    """The primitive, its late numbers taken from `values` in order."""
    late = iter([int(value) for value in values])
    return Primitive(draft.kind, tuple(next(late) if isinstance(n, Late) else n for n in draft.numbers), draft.names)


class Skeleton:
    """Matrices of a template's candidates, the very ones that the schema extracts from their sequences.

    Args:
        device: fills the hardware row or columns; None leaves them zero.

    Raises:
        DeviceKindError: the device is not of the schema's kind.
        TchubError: the schema is one of statements.
    """

    def __init__(self, template: Template, schema: FeatureSchema, device: Device | None = None) -> None:
        self.template, self.schema, self.device = template, schema, device
        self._base = schema.extract([PrimitiveSequence(())], device)[0]
        layout = CPU if schema.kind == "cpu" else GPU
        rows = None if schema.source == "nest" else RowSkeleton(template.drafts, layout, schema.primitives)
        self._fill = rows.fill if rows else self._nest()

    def features(self, decisions: Sequence[Sequence[Decision]]) -> np.ndarray:
        """Matrices of candidates, float32 of shape (N, rows, width).

        Args:
            decisions: of each candidate what its i-th sampling instruction answered, as for `Template.fill`.

        Raises:
            TraceFormatError: a decision is not what its instruction may answer.
        """
        out = np.empty((len(decisions), *self._base.shape), np.float32)
        out[:] = self._base
        if not len(decisions) or (self._fill is not None and self._fill(decisions, out)):
            return out
        return self.schema.extract([self.template.fill(d) for d in decisions], self.device)

    def _nest(self) -> Fill | None:
        """Return the writer of the loop nest's columns; None where the decisions move loops, not only sizes."""
        shapes = [shape_of(draft) for draft in self.template.drafts]
        if any(isinstance(position, Late) for (_, places, _, _), _ in shapes for position in places):
            return None
        plan, units = Plan(Outline(shape for shape, _ in shapes)), compute_units(self.device)
        numbers = [number for _, values in shapes for number in values]
        places = [i for i, number in enumerate(numbers) if isinstance(number, Late)]
        known = np.array([0 if isinstance(number, Late) else number for number in numbers], np.int64)
        late = LateNumbers([number for number in numbers if isinstance(number, Late)])

        def fill(decisions: Sequence[Sequence[Decision]], out: np.ndarray) -> bool:
            values = np.repeat(known[None], len(decisions), axis=0)
            values[:, places] = late.values(decisions)
            out[:, 0, :PROGRAM_COLUMNS] = plan.columns(values, units)
            return True

        return fill
