"""Sequences -> the rows of the `nest` schemas: grouped by structure, each group in one go."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from ..primitives import Primitive, PrimitiveSequence
from .nest import Shape, outline, shape_of
from .nest_columns import PROGRAM_COLUMNS, Plan

_PRIMITIVES, _STRUCTURES = 1 << 18, 1 << 14


class NestEncoder:
    """Remembers the structures (a few a task) and primitives seen so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._ids: dict[Shape, int] = {}
        self._seen: dict[Primitive, tuple[int, tuple[int, ...]]] = {}

    def rows(self, sequences: Sequence[PrimitiveSequence], units: float = 0.0) -> np.ndarray:
        """(N, PROGRAM_COLUMNS) float32; `units` are the device's compute units, 0 without a device."""
        out = np.zeros((len(sequences), PROGRAM_COLUMNS), np.float32)
        groups: dict[tuple[int, ...], tuple[list[int], list[list[int]]]] = {}
        with self._lock:
            self._forget()
            for i, sequence in enumerate(sequences):
                key, values = self._read(sequence)
                members, rows = groups.setdefault(key, ([], []))
                members.append(i)
                rows.append(values)
            for key, (members, rows) in groups.items():
                out[members] = self._plans[key].columns(np.array(rows, np.int64), units)
        return out

    def _forget(self) -> None:
        if len(self._seen) > _PRIMITIVES or len(self._plans) > _STRUCTURES:
            for memory in (self._seen, self._plans, self._ids):
                memory.clear()

    def _read(self, sequence: PrimitiveSequence) -> tuple[tuple[int, ...], list[int]]:
        """The structure's key and the values of a program."""
        key: list[int] = []
        values: list[int] = []
        for primitive in sequence.primitives:
            known = self._seen.get(primitive)
            if known is None:
                shape, numbers = shape_of(primitive)
                known = self._seen[primitive] = self._ids.setdefault(shape, len(self._ids)), numbers
            key.append(known[0])
            values.extend(known[1])
        found = tuple(key)
        if found not in self._plans:
            self._plans[found] = Plan(outline(tuple(shape_of(p)[0] for p in sequence.primitives)))
        return found, values
