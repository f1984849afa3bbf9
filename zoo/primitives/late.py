"""Numbers of a design space that only a candidate's sampled decisions settle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

from .errors import TraceFormatError

Decision = int | tuple[int, ...]
"""What a sampling instruction answered: tile sizes, a choice's index, or a compute location."""


@dataclass(frozen=True, slots=True)
class Atom:
    """One sampled number.

    Attributes:
        slot: the decision it is read from.
        item: which factor of a tile; 0 of other decisions.
        size: factors of the tile; 0 for a choice or a location.
        choices: what an index stands for; None for a location, which stands for itself.
    """

    slot: int
    item: int = 0
    size: int = 0
    choices: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Late:
    """A number to be computed from the decisions.

    Attributes:
        slots: which decisions it needs, as positions among the design space's sampling instructions.
        value: computes it from the decisions of one candidate.
        atoms: what it is the product of, times `scale`; empty when it is no such product. A batch of candidates
            computes all its products in one go.
        scale: the constant of that product.
    """

    slots: frozenset[int]
    value: Callable[[Sequence[Decision]], int]
    atoms: tuple[Atom, ...] = ()
    scale: int = 1


Number = int | Late


def settle(number: Number, decisions: Sequence[Decision]) -> int:
    """The number, once the decisions are known."""
    return number.value(decisions) if isinstance(number, Late) else number


def slots_of(numbers: Sequence[Number]) -> tuple[int, ...]:
    """The decisions that any of the numbers needs, in order."""
    return tuple(sorted(frozenset().union(*(n.slots for n in numbers if isinstance(n, Late)))))


def lift(function: Callable[..., int], *numbers: Number) -> Number:
    """The function of the numbers: at once when all are known, late otherwise."""
    if not any(isinstance(n, Late) for n in numbers):
        return function(*numbers)
    slots = frozenset(slots_of(numbers))

    def value(decisions: Sequence[Decision]) -> int:
        return function(*[settle(n, decisions) for n in numbers])

    late = [n for n in numbers if isinstance(n, Late)]
    if function is not product or not all(n.atoms for n in late):
        return Late(slots, value)
    scale = product(*[n.scale if isinstance(n, Late) else n for n in numbers])
    return Late(slots, value, tuple(atom for n in late for atom in n.atoms), scale)


def product(*numbers: int) -> int:
    """The product of integers, 1 for none."""
    return reduce(mul, numbers, 1)


def tile(slot: int, item: int, count: int) -> Late:
    """Item `item` of a sampled tile of `count` factors."""

    def value(decisions: Sequence[Decision]) -> int:
        sizes = decisions[slot]
        if not isinstance(sizes, tuple) or len(sizes) != count or min(sizes, default=1) < 1:
            raise TraceFormatError(f"a tile of {count} positive factors has the decision {sizes!r}")
        return sizes[item]

    return Late(frozenset((slot,)), value, (Atom(slot, item, count),))


def choice(slot: int, candidates: Sequence[int]) -> Late:
    """The chosen one of `candidates`."""

    def value(decisions: Sequence[Decision]) -> int:
        index = decisions[slot]
        if not isinstance(index, int) or not 0 <= index < len(candidates):
            raise TraceFormatError(f"a choice of {len(candidates)} has the decision {index!r}")
        return candidates[index]

    return Late(frozenset((slot,)), value, (Atom(slot, choices=tuple(candidates)),))


def location(slot: int) -> Late:
    """A sampled compute location: a loop's position, -1 (inline) or -2 (root)."""

    def value(decisions: Sequence[Decision]) -> int:
        index = decisions[slot]
        if not isinstance(index, int) or index < -2:
            raise TraceFormatError(f"a compute location has the decision {index!r}")
        return index

    return Late(frozenset((slot,)), value, (Atom(slot),))
