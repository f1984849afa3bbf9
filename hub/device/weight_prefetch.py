"""Prefetch of weights: while a product uses one block of its weights, the next block is read from memory.

A network's weights are larger than the caches and come from memory at each run. A core's own prefetching follows the
loads: it waits for a block at the first rows that need it, and memory is idle at the other rows. Here each step of a
product asks for a part of the next block, so that both work at the same time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from math import prod
from typing import Any

import tvm
import tvm.sym
from tvm import IRModule, s_tir, tirx
from tvm.ir import TensorLoad
from tvm.target import codegen
from tvm.tirx import BufferStore, For, ForKind, IntImm, Var
from tvm_ffi import structural_equal, structural_map, structural_walk

WEIGHTS = "layout_free_buffers"
"""Attribute of a function: the places of its parameters that are a network's constants, as Relax marks them."""

# Bytes of weights from which it pays. Of a block, at most: it and the next one share a cache of the second level.
LEAST, MOST = 64 << 10, 512 << 10
_LINE = 16  # floats of a line of the caches
# Floats of the accumulators, at most, which is what AVX-512's 32 registers hold; and of a row of them, less than TVM
# keeps on the stack.
_ACCUMULATORS, _ROW = 512, 128
_LOCALITY = 2  # to the cache of the second level
_LOOPS = tvm.transform.Sequential(
    [
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
    """Return a scheduled module whose products read large weights ahead; other functions stay, as all do but for x86.

    Weights are what Relax marks as a network's constants. They are best permuted to the order in which the product
    reads them, for the next block is taken to follow.

    Args:
        target: a `tvm.target.Target` of a CPU.
    """
    large = {var: func for var, func in mod.functions_items() if _large_weights(func)}
    triple = str(target.attrs.get("mtriple", "") or codegen.llvm_get_system_triple())
    if not large or not triple.startswith("x86_64"):
        return mod
    loops = {var.name_hint: func for var, func in _LOOPS(IRModule(large)).functions_items()}
    ahead = {name: _read_ahead(func) for name, func in loops.items()}
    functions = {var: ahead.get(var.name_hint) or func for var, func in mod.functions_items()}
    return IRModule(functions, mod.attrs, mod.global_infos)


def _large_weights(func: Any) -> list[Any]:
    """Return the parameters of a function that are large weights."""
    if not isinstance(func, tirx.PrimFunc) or not func.attrs:
        return []
    params: Any = func.params  # pyright: ignore[reportAttributeAccessIssue]
    weights = [params[int(position)] for position in func.attrs.get(WEIGHTS, ())]
    return [one for one in weights if str(one.ty.dtype) == "float32" and 4 * _size(one) >= LEAST]


def _size(buffer: Any) -> int:
    return prod(int(extent) for extent in buffer.ty.shape)


def _read_ahead(func: Any) -> Any:
    """Return a function of loops whose products read their large weights ahead; None where none can."""
    body = func.body
    for weight in _large_weights(func):
        for product in list(_products(func, weight)):
            ahead = _next_block(product)
            if ahead is not None:
                body = _rewritten(body, product, *ahead)
    return None if body.same_as(func.body) else func.with_body(body)


@dataclass(frozen=True)
class _Product:
    """A nest of loops around `store[...] = store[...] + ... * weight[...]`.

    Attributes:
        loops: outermost first.
        load: of the weight.
        outside: how many loops are around the allocation of the buffer that is stored to.
    """

    loops: tuple[Any, ...]
    store: Any
    load: Any
    outside: int

    @cached_property
    def sums(self) -> list[int]:
        """Return the positions of the innermost loops that add to the same elements, of which none lies between."""
        sums = list[int]()
        for i in reversed(range(self.outside, len(self.loops))):
            loop = self.loops[i]
            fixed = not any(_uses(index, loop.loop_var) for index in self.store.indices)
            if (fixed and int(loop.extent) > 1) or (sums and int(loop.extent) == 1):
                sums.insert(0, i)
            elif sums:
                break
        return sums

    @property
    def inside(self) -> tuple[Any, ...]:
        """Return the loops inside of the sums, over the accumulators of one step."""
        return self.loops[self.sums[-1] + 1 :]

    @cached_property
    def offset(self) -> Any:
        """Return the place of the weight's element among all, in floats."""
        shape = map(int, self.load.source.ty.shape)
        return reduce(lambda flat, one: flat * one[1] + one[0], zip(self.load.indices, shape, strict=True), 0)

    def moved(self, position: int, value: int) -> int:
        """Return the offset where one loop is at a value and the others are at 0."""
        kinds = [str(loop.loop_var.ty.dtype) for loop in self.loops]
        values = [
            (loop.loop_var, IntImm(kind, value if i == position else 0))
            for i, (loop, kind) in enumerate(zip(self.loops, kinds, strict=True))
        ]
        offset: Any = tvm.sym.Analyzer().simplify(_substituted(self.offset, values))
        return int(offset)


def _products(func: Any, weight: Any) -> Iterator[_Product]:
    """Yield the nests of a function that add products with a weight."""
    outside: list[tuple[Any, int]] = []

    def visit(stmt: Any, loops: tuple[Any, ...]) -> Iterator[_Product]:
        if isinstance(stmt, For):
            yield from visit(stmt.body, (*loops, stmt))
        elif isinstance(stmt, tirx.SeqStmt):
            for one in stmt.seq:
                yield from visit(one, loops)
        elif isinstance(stmt, tirx.AttrStmt):
            yield from visit(stmt.body, loops)
        elif isinstance(stmt, tirx.AllocBuffer):
            outside.append((stmt.buffer, len(loops)))
        elif isinstance(stmt, BufferStore):
            loads = list[Any]()
            structural_walk(stmt.value, (TensorLoad, loads.append))
            weights = [load for load in loads if load.source.same_as(weight)]
            own = [load.indices for load in loads if load.source.same_as(stmt.buffer)]
            if len(weights) == 1 and own and all(structural_equal(one, stmt.indices) for one in own):
                depth = next((count for buffer, count in outside if buffer.same_as(stmt.buffer)), 0)
                yield _Product(loops, stmt, weights[0], depth)

    return visit(func.body, ())


@dataclass(frozen=True)
class _Part:
    """A part of a loop: (loop // below) % extent. `step` is how far the weight moves with it, in floats."""

    loop: int
    below: int
    extent: int
    step: int


def _parts(product: _Product, position: int) -> list[_Part] | None:
    """Return a loop, which may be several that were fused, as parts of which each moves the weight or does not."""
    extent = int(product.loops[position].extent)
    divisors = [n for n in range(1, extent + 1) if extent % n == 0]
    first = next((n for n in divisors[:-1] if product.moved(position, n)), extent)
    again = next((n for n in divisors[:-1] if n > first and not product.moved(position, n)), extent)
    step = product.moved(position, first) if first < extent else 0
    if again > first and product.moved(position, again - first) != step * (again // first - 1):
        return None
    parts = [_Part(position, again, extent // again, 0), _Part(position, first, again // first, step)]
    return [part for part in (*parts, _Part(position, 1, first, 0)) if part.extent > 1]


def _next_block(product: _Product) -> tuple[Any, int] | None:
    """Return where the next block of weights is read, in floats, and in which loop; None where none is."""
    if not product.sums or not all(isinstance(loop.extent, IntImm) for loop in product.loops):
        return None
    width = prod(int(loop.extent) for loop in product.inside)
    columns = product.inside[-1] if product.inside else None
    if columns is None or columns.kind != ForKind.VECTORIZED or int(columns.extent) > _ROW or width > _ACCUMULATORS:
        return None
    parts = list[_Part]()
    for position in range(product.sums[-1] + 1):
        split = _parts(product, position)
        if split is None:
            return None
        parts += split
    row = prod(
        int(product.loops[i].extent)
        for i in range(product.sums[-1] + 1, len(product.loops))
        if int(product.loops[i].extent) > 1 and product.moved(i, 1)
    )
    for number, part in enumerate(parts):
        block = row * prod(one.extent for one in parts[number:] if one.step)
        if not part.step and row < block < _size(product.load.source) and 4 * block <= MOST:
            return _ahead(product, parts, number, block)
    return None


def _ahead(product: _Product, parts: list[_Part], number: int, block: int) -> tuple[Any, int]:
    """Return the offset that a step is to read, and the loop whose iterations are the steps, at most a line each.

    The offset is the sum of the block's own, its size, and the step's share of the next block.
    """

    def value(part: _Part) -> Any:
        loop = product.loops[part.loop]
        above = loop.loop_var // part.below if part.below > 1 else loop.loop_var
        return above % part.extent if part.below * part.extent < int(loop.extent) else above

    last = product.sums[-1]
    while last > product.sums[0] and block <= _LINE * _steps(parts[number:], last - 1):
        last -= 1
    offset = reduce(lambda sum_, part: sum_ + value(part) * part.step, parts[:number], IntImm("int64", block))
    steps = below = _steps(parts[number:], last)
    for part in parts[number:]:
        if part.loop <= last:
            below //= part.extent
            offset = offset + value(part) * -(-block * below // steps)  # rounded up: shares may overlap, without a gap
    return tvm.sym.Analyzer().simplify(offset), last


def _steps(parts: Sequence[_Part], last: int) -> int:
    """Return how many iterations the loops up to a position have."""
    return prod(part.extent for part in parts if part.loop <= last)


def _rewritten(body: Any, product: _Product, offset: Any, at: int) -> Any:
    """Return statements with a product that adds in accumulators of its own and prefetches the weight in a loop.

    Of accumulators in memory LLVM cannot know that a prefetch leaves them alone; those on the stack become registers.
    TVM has on the stack what is small: each row of accumulators is a buffer, and the loops over rows are unrolled.
    """
    store, (*outer, columns) = product.store, product.inside
    allocated, read, added, written = list[Any](), list[Any](), list[Any](), list[Any]()

    def row(target: Any, value: Any, indices: Any, values: Any) -> Any:
        """Return a store in a loop over the columns."""
        var = Var(str(columns.loop_var.name), columns.loop_var.ty)
        loop = For(var, columns.min, columns.extent, columns.kind, BufferStore(target, value, indices))
        return _substituted(loop, [*values, (columns.loop_var, var)])

    for numbers in itertools.product(*(range(int(loop.extent)) for loop in outer)):
        values = [(x.loop_var, IntImm(str(x.loop_var.ty.dtype), i)) for x, i in zip(outer, numbers, strict=True)]
        sums = tirx.decl_buffer([columns.extent], str(store.buffer.ty.dtype), "sums")
        own = tirx.BufferLoad(sums, [columns.loop_var])
        total = structural_map(store.value, (TensorLoad, partial(_replaced, store.buffer, own)))
        allocated.append(tirx.AllocBuffer(sums))
        read.append(row(sums, tirx.BufferLoad(store.buffer, store.indices), own.indices, values))
        added.append(row(sums, total, own.indices, values))
        written.append(row(store.buffer, own, store.indices, values))
    weight = tirx.BufferLoad(product.load.source, _indices(offset, product.load.source))
    address = tirx.call_intrin("handle", "tirx.address_of", weight)
    fetch = tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, 0, _LOCALITY, 1))
    whole: Any = tirx.stmt_seq(*added)
    for position in reversed(product.sums):
        whole = _with_body(product.loops[position], tirx.SeqStmt([fetch, whole]) if position == at else whole)
    whole = tirx.SeqStmt([*allocated, *read, whole, *written])
    return _with_loop(body, product.loops[product.sums[0]].loop_var, whole)


def _with_loop(stmt: Any, var: Any, whole: Any) -> Any:
    """Return statements with the loop over a variable replaced."""
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_with_loop(one, var, whole) for one in stmt.seq])
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, _with_loop(stmt.body, var, whole))
    if not isinstance(stmt, For):
        return stmt
    if stmt.loop_var.same_as(var):
        return whole
    return _with_body(stmt, _with_loop(stmt.body, var, whole))


def _with_body(loop: Any, body: Any) -> Any:
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)


def _replaced(buffer: Any, value: Any, load: Any) -> Any:
    """Return a value in place of a load from a buffer; other loads as they are."""
    return value if load.source.same_as(buffer) else load


def _indices(offset: Any, buffer: Any) -> list[Any]:
    """Return an offset as indices: rows of a buffer lie one behind the other."""
    return [*(IntImm("int64", 0) for _ in buffer.ty.shape[1:]), offset]


def _uses(expr: Any, var: Any) -> bool:
    used = list[Any]()
    structural_walk(expr, (Var, used.append))
    return any(one.same_as(var) for one in used)


def _substituted(tree: Any, values: Sequence[tuple[Any, Any]]) -> Any:
    """Return an expression or statement with variables replaced."""

    def value(var: Any) -> Any:
        return next((new for old, new in values if var.same_as(old)), var)

    return structural_map(tree, (Var, value))
