"""The numbers that wait for decisions, worked out for a whole batch of candidates at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from ..primitives.late import Atom, Decision, Late


class LateNumbers:
    """Late numbers of one template: a table of what was sampled, and which of its columns each multiplies.

    Args:
        numbers: the late numbers, one column of the answer each.
    """

    def __init__(self, numbers: Sequence[Late]) -> None:
        self.numbers = tuple(numbers)
        atoms = list(dict.fromkeys(atom for number in numbers for atom in number.atoms))
        self._reads: dict[tuple[int, int, tuple[int, ...] | None], list[Atom]] = {}
        for atom in atoms:
            self._reads.setdefault((atom.slot, atom.size, atom.choices), []).append(atom)
        place = {atom: i for i, atom in enumerate(atom for read in self._reads.values() for atom in read)}
        products = [i for i, number in enumerate(numbers) if number.atoms]
        self._others = [i for i, number in enumerate(numbers) if not number.atoms]
        self._products = np.array(products, np.intp)
        self._scales = np.array([numbers[i].scale for i in products], np.int64)
        self._factors = np.array([place[a] for i in products for a in numbers[i].atoms], np.intp)
        self._starts = np.cumsum([0, *[len(numbers[i].atoms) for i in products]])[:-1]

    def values(self, decisions: Sequence[Sequence[Decision]]) -> np.ndarray:
        """The numbers of each candidate, (N, len(numbers)) int64.

        Raises:
            TraceFormatError: a decision is not what its instruction may answer.
        """
        out = np.empty((len(decisions), len(self.numbers)), np.int64)
        if not len(decisions) or not self.numbers:
            return out
        table = self._table(decisions)
        if table is None:  # a decision is wrong: the numbers themselves tell which
            out[:] = [[number.value(d) for number in self.numbers] for d in decisions]
            return out
        if len(self._products):
            made = np.multiply.reduceat(table[:, self._factors], self._starts, axis=1)
            out[:, self._products] = made * self._scales
        for i in self._others:
            out[:, i] = [self.numbers[i].value(d) for d in decisions]
        return out

    def _table(self, decisions: Sequence[Sequence[Decision]]) -> np.ndarray | None:
        """What was sampled, one column an atom; None if some decision is none that its instruction gives."""
        columns = []
        for (slot, size, choices), atoms in self._reads.items():
            answers = [d[slot] for d in decisions]
            found = _tiles(answers, size) if size else _indices(answers, choices)
            if found is None:
                return None
            columns.append(found[:, [atom.item for atom in atoms]])
        return np.concatenate(columns, axis=1) if columns else np.empty((len(decisions), 0), np.int64)


def _tiles(answers: list[Any], size: int) -> np.ndarray | None:
    if set(map(type, answers)) != {tuple} or set(map(len, answers)) != {size}:
        return None
    found = np.fromiter(chain.from_iterable(answers), np.int64, len(answers) * size).reshape(-1, size)
    return None if found.min() < 1 else found


def _indices(answers: list[Any], choices: tuple[int, ...] | None) -> np.ndarray | None:
    if set(map(type, answers)) != {int}:
        return None
    found = np.array(answers, np.int64)
    low, high = found.min(), found.max()
    if choices is None:
        return None if low < -2 else found[:, None]
    return None if low < 0 or high >= len(choices) else np.array(choices, np.int64)[found, None]
