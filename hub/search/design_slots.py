"""Domains of the sampling instructions of a design space: drawing answers, and varying them."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from math import log2, prod
from random import Random
from typing import Any

from ...zoo.primitives.scope import Decision

# Floats of the widest vectors of CPUs.
_LANES = 16


@dataclass(frozen=True)
class TileSlot:
    """A perfect tile: `extent` as an ordered product of `parts` factors, the last one at most `innermost`.

    Attributes:
        innermost: limit of the last factor; 0 for none.
        inner, multiple: the product of the factors from position `inner` on is a multiple of `multiple`.
    """

    extent: int
    parts: int
    innermost: int = 0
    inner: int = 0
    multiple: int = 1

    def draw(self, rng: Random, count: int) -> list[Decision]:
        """Draw uniformly over ordered factorisations, as TVM's samplers; those beyond a limit again."""
        powers = [_powers(prime, exponent, self.parts) for prime, exponent in factorise(self.extent)]
        drawn: list[Decision] = []
        while len(drawn) < count:
            columns = [rng.choices(table, k=count - len(drawn)) for table in powers]
            rows = zip(*columns, strict=True) if columns else [()] * (count - len(drawn))
            tiles = [tuple(map(prod, zip(*row, strict=True))) if row else (1,) * self.parts for row in rows]
            drawn += [tile for tile in tiles if self._fits(tile)]
        return drawn

    def mutate(self, value: Decision, rng: Random) -> Decision:
        """Move one divisor from a level to another."""
        if not isinstance(value, tuple) or self.parts < 2:
            return value
        sources = [level for level, size in enumerate(value) if size > 1]
        if not sources:
            return value
        source = rng.choice(sources)
        target = rng.choice([level for level in range(self.parts) if level != source])
        factors = [d for d in divisors(value[source]) if d > 1]
        if target == self.parts - 1 and self.innermost:
            factors = [d for d in factors if value[target] * d <= self.innermost]
        if not factors:
            return value
        factor, moved = rng.choice(factors), list(value)
        moved[source] //= factor
        moved[target] *= factor
        return tuple(moved) if self._fits(moved) else value

    def adjacent(self, value: Decision) -> Iterator[Decision]:
        """Yield the tiles that have one prime factor at another level."""
        if not isinstance(value, tuple):
            return
        for source, size in enumerate(value):
            for prime, _ in factorise(size):
                for target in range(self.parts):
                    moved = list(value)
                    moved[source] //= prime
                    moved[target] *= prime
                    if target != source and self._fits(moved):
                        yield tuple(moved)

    @property
    def choices(self) -> int:
        """Count ordered factorisations, the limit left aside."""
        return prod(len(_powers(prime, exponent, self.parts)) for prime, exponent in factorise(self.extent))

    def _fits(self, tile: Sequence[int]) -> bool:
        small = not self.innermost or tile[-1] <= self.innermost
        return small and prod(tile[self.inner :]) % self.multiple == 0


@dataclass(frozen=True)
class ChoiceSlot:
    """One of several answers: constants by their index, see `weighted`, or what only TVM knows.

    TVM alone knows compute locations, and tiles of loops whose extents vary.

    Attributes:
        values: that may be drawn; of what only TVM knows those of random replays, sorted.
        weights: how likely each is; empty: all alike.
    """

    values: tuple[Decision, ...]
    weights: tuple[float, ...] = ()

    def draw(self, rng: Random, count: int) -> list[Decision]:
        """Draw by the weights."""
        return rng.choices(self.values, self.weights or None, k=count)

    def mutate(self, value: Decision, rng: Random) -> Decision:
        """Return another value."""
        others = [other for other in self.values if other != value]
        return rng.choice(others) if others else value

    def adjacent(self, value: Decision) -> Iterator[Decision]:
        """Yield the last value below a value and the first one above it, in the order of numbers."""
        ordered: list[Any] = sorted(self.values)  # pyright: ignore[reportArgumentType]
        below, above = bisect_left(ordered, value), bisect_right(ordered, value)
        yield from (ordered[index] for index in (below - 1, above) if 0 <= index < len(ordered))

    @property
    def choices(self) -> int:
        """Count the values."""
        return len(self.values)


def weighted(weights: Sequence[float]) -> ChoiceSlot:
    """Return the slot of constants by their index, with the probability of each; those that are never drawn are out."""
    drawn = {index: float(weight) for index, weight in enumerate(weights) if weight > 0}
    return ChoiceSlot(tuple(drawn), tuple(drawn.values()))


Slot = TileSlot | ChoiceSlot
"""The domain of one sampling instruction: it draws answers as TVM samples them, and varies them."""


def rescale(tile: Sequence[int], extent: int, innermost: int = 0) -> tuple[int, ...]:
    """Return the factors of `extent` nearest to a tile of another loop.

    Inner factors, which suit registers and caches, stay as far as they divide; the outermost takes the rest. The
    innermost one, which is vectorised, is a power of two beyond one vector: LLVM makes slow code of 24 lanes.

    Args:
        innermost: limit of the innermost factor; 0 for none.
    """
    rest, factors = extent, list[int]()
    for level in range(len(tile) - 1, 0, -1):
        size, allowed = tile[level], divisors(rest)
        if level == len(tile) - 1:
            allowed = [d for d in allowed if d <= (innermost or d) and (d in (size, d & -d) or d <= _LANES)]
        factors.append(min(allowed, key=lambda d: (abs(log2(d / size)), d)))
        rest //= factors[-1]
    return (rest, *reversed(factors))


@cache
def factorise(number: int) -> tuple[tuple[int, int], ...]:
    """Return the primes of a positive number with their exponents."""
    powers, prime = [], 2
    while prime * prime <= number:
        exponent = 0
        while number % prime == 0:
            number, exponent = number // prime, exponent + 1
        if exponent:
            powers.append((prime, exponent))
        prime += 1
    return (*powers, (number, 1)) if number > 1 else tuple(powers)


@cache
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a positive number, ascending."""
    all_divisors = [1]
    for prime, exponent in factorise(number):
        all_divisors = [d * prime**e for d in all_divisors for e in range(exponent + 1)]
    return tuple(sorted(all_divisors))


@cache
def _powers(prime: int, exponent: int, parts: int) -> tuple[tuple[int, ...], ...]:
    """Return every way to spread the powers of a prime over levels: bars among stars."""
    ways = []
    for bars in combinations(range(exponent + parts - 1), parts - 1):
        ends = (-1, *bars, exponent + parts - 1)
        ways.append(tuple(prime ** (b - a - 1) for a, b in pairwise(ends)))
    return tuple(ways)
