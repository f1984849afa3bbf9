"""Rounding, prefetching and threads in programs on tile registers (AMX), once their loops are known.

They round to bfloat16 by the CPU's instruction, and a column of tiles reads the weights of the next one ahead. Threads
share the columns where a product has fewer blocks of rows, which a schedule gives to threads, than there are threads: a
short sequence or a small image has one or two.
"""

from collections.abc import Iterator
from typing import Any

from tvm import DataType, IRModule, tirx
from tvm.ir import TensorLoad
from tvm.tirx import BufferStore, Cast, For, ForKind, IntImm, Var
from tvm_ffi import structural_map

from ...zoo.tile_instructions import FACTORS
from .read_ahead import WeightNest, in_loops, prefetch_blocks
from .statements import nodes_in, reads, substituted, with_parts

_ROUND, _LANES = "llvm.x86.avx512bf16.cvtneps2bf16.512", 16
_PUT_OFF = "tchub.vectorised"
# Bytes of a line of the caches, lines that one step asks for, at most, and bytes of the weights that a step reads.
_LINE, _MAX_LINES, _STEP = 64, 8, 64 * 32
_WEIGHTS = frozenset(one.weights for one in FACTORS)


def with_rounding(mod: Any) -> Any:
    """Return lowered functions that round results to bfloat16 by the CPU's instruction for it, 16 numbers at a time.

    Where loops are still loops, TVM rounds by six operations on integers, which take longer than all else that follows
    a product.
    """

    def prepared(loop: Any) -> Any:
        """Return a loop of vectors of 16 where numbers are rounded; other vectorised loops are put off."""
        if loop.kind != ForKind.VECTORIZED:
            return loop
        extent = int(loop.extent) if isinstance(loop.extent, IntImm) else 0
        if extent % _LANES or not any(map(_rounds, nodes_in(loop.body, Cast))) or not _is_last(loop):
            marked: Any = {**loop.annotations, _PUT_OFF: 1}
            return For(loop.loop_var, loop.min, loop.extent, ForKind.SERIAL, loop.body, None, marked)
        ty = loop.loop_var.ty
        number, lane = Var("vector", ty), Var("lane", ty)
        body = substituted(loop.body, [(loop.loop_var, number * _LANES + lane)])
        zero, lanes, vectors = (tirx.const(n, str(ty.dtype)) for n in (0, _LANES, extent // _LANES))
        return For(number, zero, vectors, ForKind.UNROLLED, For(lane, zero, lanes, ForKind.VECTORIZED, body))

    def instruction(cast: Any) -> Any:
        if not _rounds(cast) or str(cast.ty.dtype) != f"bfloat16x{_LANES}":
            return cast
        bits = tirx.call_llvm_pure_intrin(f"uint16x{_LANES}", _ROUND, cast.value)
        return tirx.reinterpret(str(cast.ty.dtype), bits)

    def restored(loop: Any) -> Any:
        if _PUT_OFF not in loop.annotations:
            return loop
        others = {key: value for key, value in loop.annotations.items() if key != _PUT_OFF}
        return For(loop.loop_var, loop.min, loop.extent, ForKind.VECTORIZED, loop.body, None, others)

    def mapped(mod: Any, *change: Any) -> Any:
        functions = {var: func.with_body(structural_map(func.body, change)) for var, func in mod.functions_items()}
        return IRModule(functions, mod.attrs, mod.global_infos)

    vectors = tirx.transform.VectorizeLoop()(mapped(mod, For, prepared))
    return mapped(mapped(vectors, Cast, instruction), For, restored)


def _is_last(loop: Any) -> bool:
    """Return whether the variable of a loop is in the last index alone of what is read and written, as vectors need."""
    accesses = nodes_in(loop.body, TensorLoad, BufferStore)
    return not any(reads(index, loop.loop_var) for one in accesses for index in one.indices[:-1])


def _rounds(cast: Any) -> bool:
    return str(cast.ty.dtype).startswith("bfloat16") and str(cast.value.ty.dtype).startswith("float32")


class _Tiles(WeightNest):
    """A nest around instructions that read a weight by its address."""

    most_lines = _MAX_LINES

    @property
    def size(self) -> int:
        """Return the bytes of a number of the weight."""
        return int(DataType(str(self.load.source.ty.dtype)).itemsize)

    @property
    def line(self) -> int:
        """Return the numbers of a line."""
        return _LINE // self.size


def prefetch_tiles(body: Any) -> Any:
    """Return lowered statements whose products on tile registers prefetch their weights."""
    nests = list(_tile_nests(body))
    return prefetch_blocks(body, nests, _STEP // nests[0].size)[0] if nests else body


def _tile_nests(body: Any) -> Iterator[_Tiles]:
    """Yield the nests of statements that take weights by their address, each where it does so first."""
    for stmt, loops, alone in in_loops(body):
        several: list[Any] = list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else []
        # And not a prefetch of what is further on.
        instructions = [one for one in several if str(one.value.op.name) == "tirx.call_llvm_intrin"]
        loads = [load for one in instructions for load in nodes_in(one, TensorLoad)]
        if loads and str(loads[0].source.ty.dtype) in _WEIGHTS:
            yield _Tiles(loops, loads[0], alone)


def share_columns(stmt: Any, clears: Any, threads: int) -> Any:
    """Return lowered statements of one product whose loop over tiles is shared by so many threads, if it can be.

    Args:
        clears: whether statements clear the sums of a tile: those of a loop around them are of tiles of its own each.
    """
    if not isinstance(stmt, For):
        return with_parts(stmt, lambda one: share_columns(one, clears, threads) if clears(one) else one)
    if not isinstance(stmt.extent, IntImm):
        return stmt
    if stmt.kind != ForKind.PARALLEL:
        return _shared(None, stmt, threads)
    *before, tiles = stmt.body.seq if isinstance(stmt.body, tirx.SeqStmt) else [stmt.body]
    alone = isinstance(tiles, For) and isinstance(tiles.extent, IntImm) and not any(map(clears, before))
    if not alone or int(stmt.extent) >= threads:
        return stmt
    return _shared(stmt, tiles, threads, before)


def _shared(rows: Any, tiles: Any, threads: int, before: list[Any] | None = None) -> Any:
    """Return a loop over tiles as parts, one for each thread.

    Args:
        rows: the parallel loop around it; None without one.
        before: what is done for each block of rows; each part does it.
    """
    if tiles.kind != ForKind.SERIAL or threads < 2:
        return rows or tiles
    blocks, extent = int(rows.extent) if rows is not None else 1, int(tiles.extent)
    parts = next((n for n in range(1, extent + 1) if extent % n == 0 and n * blocks >= threads), extent)
    kind = tiles.loop_var.ty
    number, own = Var("part", kind), Var("tile", kind)
    part: Any = number % parts if rows is not None else number
    body = substituted(tiles.body, [(tiles.loop_var, part * (extent // parts) + own)])
    zero = IntImm(str(kind.dtype), 0)
    body = For(own, zero, IntImm(str(kind.dtype), extent // parts), ForKind.SERIAL, body)
    if rows is not None:
        body = substituted(tirx.stmt_seq(*(before or ()), body), [(rows.loop_var, number // parts)])
    return For(number, zero, IntImm(str(kind.dtype), blocks * parts), ForKind.PARALLEL, body)
