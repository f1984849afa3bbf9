"""Prefetch of weights: while a product uses one block of its weights, the next block is read from memory.

The weights of a large network come from memory at each run. A core's own prefetching follows the loads: it waits for a
block at the first rows that need it, and memory is idle at the other rows. Here each step of a product asks for a part
of the next block, so that both work at the same time.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import isqrt, prod
from typing import Any

import tvm
import tvm.sym
from tvm import IRModule, s_tir, tirx
from tvm.ir import TensorLoad
from tvm.target import codegen
from tvm.tirx import BufferStore, For, ForKind, IntImm, Var
from tvm_ffi import structural_equal, structural_map, structural_walk

from .candidate import WEIGHTS

# Bytes of weights from which it pays, measured on a Xeon; and of a block, at most: it and the next one share a cache of
# the second level, which has 1 MiB on the servers that tchub knows.
MIN_WEIGHT, MAX_BLOCK = 64 << 10, 512 << 10
# Floats of the accumulators, at most, which is what AVX-512's 32 registers hold; and of a row of them, less than TVM
# keeps on the stack.
_MAX_ACCUMULATORS, _MAX_ROW = 512, 128
# Floats of a line of the caches, and lines that one step asks for, at most: a core has a dozen requests under way.
_LINE, _MAX_LINES = 16, 4
# The same of bfloat16 and of a step on tile registers, and the weights that such a step reads.
_HALF_LINE, _MAX_TILE_LINES, _TILE_STEP = 32, 8, 32 * 32
_LINE_BYTES = 64
_READ, _SECOND_LEVEL, _DATA = 0, 2, 1
"""Of LLVM's prefetch: for reading, into the cache of the second level, of data."""
LOOPS = tvm.transform.Sequential(
    [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
)


def prefetch_weights(mod: Any, target: Any) -> Any:
    """Return a scheduled module whose products prefetch large weights.

    Other functions, and all functions of other CPUs than x86, are returned unchanged.

    Args:
        mod: an `IRModule`. The weights of its functions are what Relax marks as a network's constants; they are best
            permuted to the order in which the product reads them, for the next block is taken to follow.
        target: a `tvm.target.Target` of a CPU.
    """
    large = {var: func for var, func in mod.functions_items() if _large_weights(func)}
    triple = str(target.attrs.get("mtriple", "") or codegen.llvm_get_system_triple())
    if not large or not triple.startswith("x86_64"):
        return mod
    lowered = {var.name_hint: func for var, func in LOOPS(IRModule(large)).functions_items()}
    prefetching = {name: _with_prefetches(func) for name, func in lowered.items()}
    functions = {var: prefetching.get(var.name_hint) or func for var, func in mod.functions_items()}
    return IRModule(functions, mod.attrs, mod.global_infos)


def _large_weights(func: Any) -> list[Any]:
    """Return the parameters of a function that are large weights."""
    if not isinstance(func, tirx.PrimFunc) or not func.attrs:
        return []
    params: Any = func.params  # pyright: ignore[reportAttributeAccessIssue]
    weights = [params[int(position)] for position in func.attrs.get(WEIGHTS, ())]
    return [one for one in weights if str(one.ty.dtype) == "float32" and 4 * _size(one) >= MIN_WEIGHT]


def _size(buffer: Any) -> int:
    return prod(int(extent) for extent in buffer.ty.shape)


def _with_prefetches(func: Any) -> Any:
    """Return a lowered function whose products prefetch their large weights; None where none can."""
    body, rewritten = func.body, list[Any]()
    for weight in _large_weights(func):
        for product in list(_products(func, weight)):
            prefetch = _prefetch(product)
            if prefetch is not None and not any(prefetch.outermost.same_as(var) for var in rewritten):
                body = _rewritten(body, product, prefetch)
                rewritten.append(prefetch.outermost)
    return func.with_body(body) if rewritten else None


@dataclass(frozen=True)
class _Nest:
    """A nest of loops around what adds something of a weight to sums.

    Attributes:
        loops: outermost first.
        load: of the weight.
        alone: position of the outermost loop that has nothing in it but the loops further in and the addition.
    """

    loops: tuple[Any, ...]
    load: Any
    alone: int

    line, most_lines = _LINE, _MAX_LINES

    @cached_property
    def sums(self) -> list[int]:
        """Return the positions of the innermost loops in a row that add to the same elements."""
        return list(range(self.alone, len(self.loops)))

    @cached_property
    def offset(self) -> Any:
        """Return the position of the weight's element among all, in elements."""
        pairs = zip(self.load.indices, map(int, self.load.source.ty.shape), strict=True)
        return reduce(lambda flat, one: flat * one[1] + one[0], pairs, IntImm("int64", 0))

    @property
    def is_regular(self) -> bool:
        """Return whether all extents are known, and the loops alone decide what is read and what is stored to."""
        return self._is_of_loops(self.offset)

    def _is_of_loops(self, *exprs: Any) -> bool:
        loads, variables = list[Any](), list[Any]()
        for expr in exprs:
            structural_walk(expr, [(TensorLoad, loads.append), (Var, variables.append)])
        loops = [loop.loop_var for loop in self.loops]
        known = all(any(var.same_as(own) for own in loops) for var in variables)
        return known and not loads and all(isinstance(loop.extent, IntImm) for loop in self.loops)

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
        first, last = (_substituted(self.offset, values) for values in at)
        moved: Any = tvm.sym.Analyzer().simplify(last - first)
        return int(moved)


class _Tiles(_Nest):
    """A nest around instructions that read a weight by its address."""

    line, most_lines = _HALF_LINE, _MAX_TILE_LINES


@dataclass(frozen=True)
class _Product(_Nest):
    """A nest around a store that adds to the element that it stores to."""

    store: Any

    @cached_property
    def sums(self) -> list[int]:
        """Return the positions of the innermost loops in a row that add to the same elements."""
        sums = list[int]()
        for i in reversed(range(self.alone, len(self.loops))):
            if not any(_uses(index, self.loops[i].loop_var) for index in self.store.indices):
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

    def visit(stmt: Any, loops: tuple[Any, ...], alone: int) -> Iterator[_Product]:
        if isinstance(stmt, For):
            yield from visit(stmt.body, (*loops, stmt), alone)
        elif isinstance(stmt, tirx.SeqStmt):
            for one in stmt.seq:
                yield from visit(one, loops, len(loops))
        elif isinstance(stmt, tirx.AttrStmt):
            yield from visit(stmt.body, loops, len(loops))
        elif isinstance(stmt, BufferStore):
            loads = list[Any]()
            structural_walk(stmt.value, (TensorLoad, loads.append))
            weights = [load for load in loads if load.source.same_as(weight)]
            sums = [load.indices for load in loads if load.source.same_as(stmt.buffer)]
            if len(weights) == 1 and sums and all(structural_equal(one, stmt.indices) for one in sums):
                yield _Product(loops, weights[0], alone, stmt)

    return visit(func.body, (), 0)


def prefetch_tiles(body: Any) -> Any:
    """Return lowered statements whose products on tile registers prefetch their weights, those of bfloat16."""
    done = list[Any]()
    for nest in _tile_nests(body):
        prefetch = _next_block(nest, _TILE_STEP) if nest.sums and nest.is_regular else None
        if prefetch is None or any(prefetch.outermost.same_as(var) for var in done):
            continue
        done.append(prefetch.outermost)
        offsets = [prefetch.offset + line * _HALF_LINE for line in range(prefetch.lines)]
        loop = nest.loops[prefetch.loop]
        requests = [_request(nest.load.source, offset) for offset in offsets]
        body = _with_loop(body, loop.loop_var, _with_body(loop, tirx.SeqStmt([*requests, loop.body])))
    return body


def _tile_nests(body: Any) -> Iterator[_Tiles]:
    """Yield the nests of statements that take weights of bfloat16 by their address, each where it does so first."""

    def visit(stmt: Any, loops: tuple[Any, ...], alone: int) -> Iterator[_Tiles]:
        several: list[Any] = list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else []
        if isinstance(stmt, For):
            yield from visit(stmt.body, (*loops, stmt), alone)
        elif several and all(isinstance(one, tirx.Evaluate) for one in several):
            loads = list[Any]()
            for one in several:
                if str(one.value.op.name) == "tirx.call_llvm_intrin":  # and not a prefetch of what is further on
                    structural_walk(one, (TensorLoad, loads.append))
            if loads and str(loads[0].source.ty.dtype) == "bfloat16":
                yield _Tiles(loops, loads[0], alone)
        elif several:
            for one in several:
                yield from visit(one, loops, len(loops))
        elif isinstance(stmt, tirx.AttrStmt):
            yield from visit(stmt.body, loops, len(loops))

    return visit(body, (), 0)


@dataclass(frozen=True)
class _Factor:
    """A factor of a loop: (loop // below) % extent. `step` is how far the weight moves with it, in elements."""

    loop: int
    below: int
    extent: int
    step: int


def _factors(product: _Nest, position: int) -> list[_Factor] | None:
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
class _Prefetch:
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


def _prefetch(product: _Product) -> _Prefetch | None:
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
    return _next_block(product, row)


def _next_block(nest: _Nest, row: int) -> _Prefetch | None:
    """Return how a nest can read the next block; `row`: elements of the weight that a step of its sums reads."""
    factors = list[_Factor]()
    for position in range(nest.sums[-1] + 1):
        split = _factors(nest, position)
        if split is None:
            return None
        factors += split
    size, line = _size(nest.load.source), nest.line
    for number, factor in enumerate(factors):
        block = row * prod(one.extent for one in factors[number:] if one.step)
        if not factor.step and row < block < size and _LINE_BYTES * block <= line * MAX_BLOCK:
            return _steps_of(nest, factors, number, block)
    return None


def _steps_of(product: _Nest, factors: list[_Factor], number: int, block: int) -> _Prefetch | None:
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
    return _Prefetch(outermost, last, simple, lines) if lines <= product.most_lines else None


def _rewritten(body: Any, product: _Product, prefetch: _Prefetch) -> Any:
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
        return _substituted(loop, [*row, (columns.loop_var, var)])

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
    requests = [_request(product.load.source, prefetch.offset + line * _LINE) for line in range(prefetch.lines)]
    nest: Any = tirx.stmt_seq(*additions)
    for position in reversed(product.sums):
        nest = _with_body(
            product.loops[position], tirx.SeqStmt([*requests, nest]) if position == prefetch.loop else nest
        )
    return _with_loop(body, prefetch.outermost, tirx.SeqStmt([*allocations, *loads, nest, *stores]))


def _request(weight: Any, offset: Any) -> Any:
    """Return the prefetch of a line. An offset stands for the last index: rows lie one behind the other."""
    indices = [*(IntImm("int64", 0) for _ in weight.ty.shape[1:]), offset]
    address = tirx.call_intrin("handle", "tirx.address_of", tirx.BufferLoad(weight, indices))
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, _READ, _SECOND_LEVEL, _DATA))


def _with_loop(stmt: Any, var: Any, nest: Any) -> Any:
    """Return statements with the loop over a variable replaced.

    `structural_map` would give the buffers that are allocated around it new variables, which `nest` does not have.
    """
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_with_loop(one, var, nest) for one in stmt.seq])
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, _with_loop(stmt.body, var, nest))
    if not isinstance(stmt, For):
        return stmt
    return nest if stmt.loop_var.same_as(var) else _with_body(stmt, _with_loop(stmt.body, var, nest))


def _with_body(loop: Any, body: Any) -> Any:
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)


def _uses(expr: Any, var: Any) -> bool:
    used = list[Any]()
    structural_walk(expr, (Var, used.append))
    return any(one.same_as(var) for one in used)


def _substituted(tree: Any, values: Sequence[tuple[Any, Any]]) -> Any:
    """Return an expression or statement with variables replaced."""

    def value(var: Any) -> Any:
        return next((new for old, new in values if var.same_as(old)), var)

    return structural_map(tree, (Var, value))
