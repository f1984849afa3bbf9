"""Prefetch of weights: while a product uses one block of its weights, the next block is read from memory.

The weights of a large network come from memory at each run. A core's own prefetching follows the loads: it waits for a
block at the first rows that need it, and memory is idle at the other rows. Here each step of a product asks for a part
of the next block, so that both work at the same time.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import BufferStore, For, ForKind, IntImm, Var
from tvm_ffi import structural_equal, structural_map

from .candidate import WEIGHTS
from .extensions import is_x86
from .read_ahead import LINE, ReadAhead, WeightNest, in_loops, next_block, prefetch_blocks, request, with_loop
from .statements import nodes_in, reads, size_of, substituted, with_body, with_lowered

# Bytes of weights from which it pays, measured on a Xeon.
MIN_WEIGHT = 64 << 10
# Floats of the accumulators, at most, which is what AVX-512's 32 registers hold; and of a row of them, less than TVM
# keeps on the stack.
_MAX_ACCUMULATORS, _MAX_ROW = 512, 128
# Weights of whole numbers are words of four; what multiplies a tile of them reads so many columns, in so many loops.
_WORDS, _COLUMNS, _LOOPS_OF_TILE = "uint32", 32, 4
_TYPES = "float32", _WORDS


def prefetch_weights(mod: Any, target: Any) -> Any:
    """Return a scheduled module whose products prefetch large weights.

    Other functions, and all functions of other CPUs than x86, are returned unchanged.

    Args:
        mod: an `IRModule`. The weights of its functions are what Relax marks as a network's constants; they are best
            permuted to the order in which the product reads them, for the next block is taken to follow.
        target: a `tvm.target.Target` of a CPU.
    """
    return with_lowered(mod, _large_weights, _with_prefetches) if is_x86(target) else mod


def _large_weights(func: Any) -> list[Any]:
    """Return the parameters of a tensor function that are large weights."""
    weights = [func.params[int(position)] for position in (func.attrs or {}).get(WEIGHTS, ())]
    return [one for one in weights if str(one.ty.dtype) in _TYPES and 4 * size_of(one) >= MIN_WEIGHT]


def _with_prefetches(func: Any) -> Any:
    """Return a lowered function whose products prefetch their large weights; None where none can."""
    body, rewritten = func.body, list[Any]()
    for weight in _large_weights(func):
        if str(weight.ty.dtype) == _WORDS:
            nests = [*_word_nests(body, weight)]
            body, done = prefetch_blocks(body, nests, nests[0].step if nests else 0)
            rewritten += done
            continue
        for product in list(_products(func, weight)):
            prefetch = _prefetch(product)
            if prefetch is not None and not any(prefetch.outermost.same_as(var) for var in rewritten):
                body = _rewritten(body, product, prefetch)
                rewritten.append(prefetch.outermost)
    return func.with_body(body) if rewritten else None


@dataclass(frozen=True)
class _WordNest(WeightNest):
    """A nest around what multiplies tiles by vector registers, and the words that it reads."""

    step: int
    most_lines = 8


def _word_nests(body: Any, weight: Any) -> Iterator[_WordNest]:
    """Yield the nests of a lowered function that multiply tiles by words of a weight, without the loops of a tile."""
    for stmt, loops, alone in in_loops(body):
        loads = [load for load in nodes_in(stmt, TensorLoad) if load.source.same_as(weight)]
        if loads and len(loops) > max(_LOOPS_OF_TILE, alone + _LOOPS_OF_TILE - 1):
            first = [(loop.loop_var, loop.min) for loop in loops[-_LOOPS_OF_TILE:]]
            *rows, lanes = loads[0].indices
            indices = [*rows, lanes.base if isinstance(lanes, tirx.Ramp) else lanes]
            load = tirx.BufferLoad(weight, [substituted(index, first) for index in indices])
            *outside, several, each, _, _ = loops
            step = int(several.extent) * int(each.extent) * _COLUMNS
            yield _WordNest(tuple(outside), load, alone, step)


@dataclass(frozen=True)
class _Product(WeightNest):
    """A nest around a store that adds to the element that it stores to."""

    store: Any

    @cached_property
    def sums(self) -> list[int]:
        """Return the positions of the innermost loops in a row that add to the same elements."""
        sums = list[int]()
        for i in reversed(range(self.alone, len(self.loops))):
            if not any(reads(index, self.loops[i].loop_var) for index in self.store.indices):
                sums.insert(0, i)
            elif sums:
                break
        return sums

    @property
    def inside(self) -> tuple[Any, ...]:
        """Return the loops inside of the sums, over the accumulators of one step."""
        return self.loops[self.sums[-1] + 1 :]

    @property
    def is_regular(self) -> bool:
        """Return whether all extents are known, and the loops alone decide what is read and what is stored to."""
        return self._is_of_loops(self.offset, *self.store.indices)


def _products(func: Any, weight: Any) -> Iterator[_Product]:
    """Yield the nests of a lowered function that add products with a weight."""
    for stmt, loops, alone in in_loops(func.body):
        if isinstance(stmt, BufferStore):
            loads = nodes_in(stmt.value, TensorLoad)
            weights = [load for load in loads if load.source.same_as(weight)]
            sums = [load.indices for load in loads if load.source.same_as(stmt.buffer)]
            if len(weights) == 1 and sums and all(structural_equal(one, stmt.indices) for one in sums):
                yield _Product(loops, weights[0], alone, stmt)


def _prefetch(product: _Product) -> ReadAhead | None:
    """Return how a product can read the next block of its weight; None where there is none.

    A block is what the loops inside of one that does not move the weight read of it. Of several such loops it is the
    outermost whose block is small enough: the others read theirs from the caches but for the first time.
    """
    if not product.is_regular or not product.sums or not product.inside:
        return None
    *rows, columns = product.inside
    width = prod(int(loop.extent) for loop in product.inside)
    plain = all(loop.kind in {ForKind.SERIAL, ForKind.UNROLLED} for loop in rows) and columns.kind == ForKind.VECTORIZED
    if not plain or int(columns.extent) > _MAX_ROW or width > _MAX_ACCUMULATORS:
        return None
    inside = range(product.sums[-1] + 1, len(product.loops))
    extents = [(position, int(product.loops[position].extent)) for position in inside]
    row = prod(n for position, n in extents if n > 1 and product.distance(position, 1))
    return next_block(product, row)


def _rewritten(body: Any, product: _Product, prefetch: ReadAhead) -> Any:
    """Return statements with a product that adds in accumulators of its own and prefetches its weight.

    Of accumulators in memory LLVM cannot know that a prefetch leaves them alone; those on the stack become registers.
    TVM has on the stack what is small: each row of accumulators is a buffer, and the loops over rows are unrolled.
    """
    store, (*rows, columns) = product.store, product.inside
    allocations, loads, additions, stores = list[Any](), list[Any](), list[Any](), list[Any]()

    def of_row(buffer: Any, value: Any, indices: Any, row: Any) -> Any:
        """Return a store in a loop over the columns."""
        var = Var(str(columns.loop_var.name), columns.loop_var.ty)
        loop = For(var, columns.min, columns.extent, columns.kind, BufferStore(buffer, value, indices))
        return substituted(loop, [*row, (columns.loop_var, var)])

    for numbers in itertools.product(*(range(int(loop.extent)) for loop in rows)):
        row = [(x.loop_var, IntImm(str(x.loop_var.ty.dtype), i)) for x, i in zip(rows, numbers, strict=True)]
        sums = tirx.decl_buffer([columns.extent], str(store.buffer.ty.dtype), "sums")
        total = tirx.BufferLoad(sums, [columns.loop_var])

        def summed(load: Any, total: Any = total) -> Any:
            return total if load.source.same_as(store.buffer) else load

        value = structural_map(store.value, (TensorLoad, summed))
        allocations.append(tirx.AllocBuffer(sums))
        loads.append(of_row(sums, tirx.BufferLoad(store.buffer, store.indices), total.indices, row))
        additions.append(of_row(sums, value, total.indices, row))
        stores.append(of_row(store.buffer, total, store.indices, row))
    requests = [request(product.load.source, prefetch.offset + line * LINE) for line in range(prefetch.lines)]
    nest: Any = tirx.stmt_seq(*additions)
    for position in reversed(product.sums):
        nest = with_body(
            product.loops[position], tirx.SeqStmt([*requests, nest]) if position == prefetch.loop else nest
        )
    return with_loop(body, prefetch.outermost, tirx.SeqStmt([*allocations, *loads, nest, *stores]))
