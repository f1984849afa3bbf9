"""Which part of the next block of its weights each step of a product asks for, while it uses the present one.

A product is a nest of loops. A block of weights is what the loops inside of one that does not move the weight read of
it; the steps of that loop share the next block among them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from math import isqrt, prod
from typing import Any

import tvm.sym
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import For, IntImm, Var

from .statements import flat_index, nodes_in, size_of, substituted, with_body, with_parts

# Bytes of a block, at most: it and the next one share a cache of the second level, which has 1 MiB on the servers that
# tchub knows.
MAX_BLOCK = 512 << 10
# Floats of a line of the caches, its bytes, and lines that one step asks for, at most: a core has a dozen requests
# under way.
LINE, _LINE_BYTES, _MAX_LINES = 16, 64, 4
_READ, _SECOND_LEVEL, _DATA = 0, 2, 1
"""Of LLVM's prefetch: for reading, into the cache of the second level, of data."""


@dataclass(frozen=True)
class WeightNest:
    """A nest of loops around what adds something of a weight to sums.

    Attributes:
        loops: outermost first.
        load: of the weight.
        alone: position of the outermost loop that has nothing in it but the loops further in and the addition.
    """

    loops: tuple[Any, ...]
    load: Any
    alone: int

    most_lines = _MAX_LINES

    @property
    def line(self) -> int:
        """Return the numbers of the weight in a line of the caches."""
        return LINE

    @cached_property
    def sums(self) -> list[int]:
        """Return the positions of the innermost loops in a row that add to the same elements."""
        return list(range(self.alone, len(self.loops)))

    @cached_property
    def offset(self) -> Any:
        """Return the position of the weight's element among all, in elements."""
        return flat_index(self.load.indices, list(map(int, self.load.source.ty.shape)))

    @property
    def is_regular(self) -> bool:
        """Return whether all extents are known, and the loops alone decide what is read and what is stored to."""
        return self._is_of_loops(self.offset)

    def _is_of_loops(self, *exprs: Any) -> bool:
        loops = [loop.loop_var for loop in self.loops]
        known = all(any(var.same_as(own) for own in loops) for expr in exprs for var in nodes_in(expr, Var))
        static = all(isinstance(loop.extent, IntImm) for loop in self.loops)
        return known and static and not any(nodes_in(expr, TensorLoad) for expr in exprs)

    def distance(self, position: int, value: int) -> int:
        """Return how far the weight moves where one loop goes from 0 to a value and the others are at 0."""
        kinds = [str(loop.loop_var.ty.dtype) for loop in self.loops]
        at = [
            [
                (loop.loop_var, IntImm(kind, end if i == position else 0))
                for i, (loop, kind) in enumerate(zip(self.loops, kinds, strict=True))
            ]
            for end in (0, value)
        ]
        first, last = (substituted(self.offset, values) for values in at)
        moved: Any = tvm.sym.Analyzer().simplify(last - first)
        return int(moved)


@dataclass(frozen=True)
class _Factor:
    """A factor of a loop: (loop // below) % extent. `step` is how far the weight moves with it, in elements."""

    loop: int
    below: int
    extent: int
    step: int


def _factors(product: WeightNest, position: int) -> list[_Factor] | None:
    """Return a loop, which may be several that were fused, as factors of which each moves the weight or does not."""
    extent = int(product.loops[position].extent)
    low = [n for n in range(1, isqrt(extent) + 1) if extent % n == 0]
    divisors = sorted({*low, *(extent // n for n in low)})
    moves = next((n for n in divisors[:-1] if product.distance(position, n)), extent)
    returns = next((n for n in divisors[:-1] if n > moves and not product.distance(position, n)), extent)
    step = product.distance(position, moves) if moves < extent else 0
    if returns > moves and product.distance(position, returns - moves) != step * (returns // moves - 1):
        return None
    outer = _Factor(position, returns, extent // returns, 0), _Factor(position, moves, returns // moves, step)
    return [factor for factor in (*outer, _Factor(position, 1, moves, 0)) if factor.extent > 1]


@dataclass(frozen=True)
class ReadAhead:
    """What a product reads ahead.

    Attributes:
        outermost: variable of the outermost loop of the sums.
        loop: position of the loop whose iterations are the steps.
        offset: of what a step reads, in elements.
        lines: that it reads from there.
    """

    outermost: Any
    loop: int
    offset: Any
    lines: int


def next_block(nest: WeightNest, row: int) -> ReadAhead | None:
    """Return how a nest can read the next block; `row`: elements of the weight that a step of its sums reads."""
    factors = list[_Factor]()
    for position in range(nest.sums[-1] + 1):
        split = _factors(nest, position)
        if split is None:
            return None
        factors += split
    size, line = size_of(nest.load.source), nest.line
    for number, factor in enumerate(factors):
        block = row * prod(one.extent for one in factors[number:] if one.step)
        if not factor.step and row < block < size and _LINE_BYTES * block <= line * MAX_BLOCK:
            return _steps_of(nest, factors, number, block)
    return None


def _steps_of(product: WeightNest, factors: list[_Factor], number: int, block: int) -> ReadAhead | None:
    """Return the steps in which a block is read; None where each had to read too much.

    The offset of a step is the sum of the present block's, a block's size, and the step's share of the next block.
    Behind the last block it is an address that nobody reads: prefetches do not fault.

    Args:
        number: of the factor that does not move the weight.
    """

    def value(factor: _Factor) -> Any:
        loop = product.loops[factor.loop]
        above = loop.loop_var // factor.below if factor.below > 1 else loop.loop_var
        return above % factor.extent if factor.below * factor.extent < int(loop.extent) else above

    def steps_to(last: int) -> int:
        return prod(factor.extent for factor in factors[number:] if factor.loop <= last)

    last = product.sums[-1]
    while last > max(product.sums[0], factors[number].loop) and block <= product.line * steps_to(last - 1):
        last -= 1
    offset = reduce(lambda total, one: total + value(one) * one.step, factors[:number], IntImm("int64", block))
    steps = below = steps_to(last)
    lines = -(-block // (steps * product.line))
    for factor in factors[number:]:
        if factor.loop <= last:
            below //= factor.extent
            # Rounded up, so that shares may overlap, but leave no gap.
            offset = offset + value(factor) * -(-block * below // steps)
    outermost = product.loops[product.sums[0]].loop_var
    simple = tvm.sym.Analyzer().simplify(offset)
    return ReadAhead(outermost, last, simple, lines) if lines <= product.most_lines else None


def request(weight: Any, offset: Any) -> Any:
    """Return the prefetch of a line. An offset stands for the last index: rows lie one behind the other."""
    indices = [*(IntImm("int64", 0) for _ in weight.ty.shape[1:]), offset]
    address = tirx.call_intrin("handle", "tirx.address_of", tirx.BufferLoad(weight, indices))
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, _READ, _SECOND_LEVEL, _DATA))


def prefetch_blocks(body: Any, nests: Iterable[WeightNest], row: int) -> tuple[Any, list[Any]]:
    """Return statements in which each step of some nests asks for its share of the next block, and which nests do.

    Args:
        row: elements of the weight that a step reads.
    """
    done = list[Any]()
    for nest in nests:
        prefetch = next_block(nest, row) if nest.sums and nest.is_regular else None
        if prefetch is None or any(prefetch.outermost.same_as(var) for var in done):
            continue
        done.append(prefetch.outermost)
        offsets = [prefetch.offset + line * nest.line for line in range(prefetch.lines)]
        loop = nest.loops[prefetch.loop]
        requests = [request(nest.load.source, offset) for offset in offsets]
        body = with_loop(body, loop.loop_var, with_body(loop, tirx.SeqStmt([*requests, loop.body])))
    return body, done


def with_loop(stmt: Any, var: Any, nest: Any) -> Any:
    """Return statements with the loop over a variable replaced.

    `structural_map` would give the buffers that are allocated around it new variables, which `nest` does not have.
    """
    if isinstance(stmt, For) and stmt.loop_var.same_as(var):
        return nest
    return with_parts(stmt, lambda one: with_loop(one, var, nest))


def in_loops(stmt: Any, loops: tuple[Any, ...] = (), alone: int = 0) -> Iterator[tuple[Any, tuple[Any, ...], int]]:
    """Yield the statements in loops, with the loops around each, and the position of the outermost with nothing else.

    Statements that follow each other and have no result, as instructions on tiles, are one.
    """
    if isinstance(stmt, For):
        yield from in_loops(stmt.body, (*loops, stmt), alone)
    elif isinstance(stmt, tirx.AttrStmt):
        yield from in_loops(stmt.body, loops, len(loops))
    elif isinstance(stmt, tirx.SeqStmt) and not all(isinstance(one, tirx.Evaluate) for one in stmt.seq):
        for one in stmt.seq:
            yield from in_loops(one, loops, len(loops))
    else:
        yield stmt, loops, alone
