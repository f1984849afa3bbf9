"""What is unrolled: always the tile in which a product is summed, and not too much behind it.

LLVM keeps the sums of a tile in registers if it unrolls the tile's loops. Whether it does depends on the length of
their indices, and where it does not, each sum is read and written at each step: a convolution of groups took 19.6 ms in
place of 1.2.

TVM unrolls loops up to so many stores, whatever they compute. A few hundred multiply-adds are meant; as many Gaussian
errors are ten times the code, compile in five seconds instead of 0.1, and are as fast as a loop to half a percent.
"""

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.stmt import SBlockRealize
from tvm.tirx import AttrStmt, BufferStore, For, ForKind, IfThenElse, IntImm, IterVar, SeqStmt

from .statements import nodes_in, reads, with_body, with_lowered

# Operations on floats that are written out one by one, at most; more stay in a loop. A product of 512 steps has 2,500.
MOST = 8192
# A maximum or minimum that is taken again and again counts as so many: LLVM compiles 16 in a row at once, and 640 not
# within ten minutes.
_EXTREME = MOST // 16
_PRAGMA = "pragma_auto_unroll_max_step"
# Sums of a tile, each of a vector, that are written out at most: one for each register of AVX-512.
_MOST_SUMS = 32


def unrolled_sums(mod: Any) -> Any:
    """Return a scheduled module in which the loops of the tile that each sum is computed in are unrolled.

    These are the loops inside of the innermost one that goes on with the sum, but for the vectorised one.
    """
    schedule: Any = Schedule(mod)
    changed = False
    for var in (var for var, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)):
        for block in _blocks(schedule, var.name_hint):
            sums = 1
            for loop in _inside_of_sums(schedule, block):
                sums *= int(schedule.get(loop).extent)
                if sums > _MOST_SUMS:
                    break
                schedule.unroll(loop)
                changed = True
    return schedule.mod if changed else mod


def _blocks(schedule: Any, function: str) -> list[Any]:
    """Return the blocks of a function; none of one that has no schedule."""
    try:
        return list(schedule.get_child_blocks(schedule.get_sblock("root", func_name=function)))
    except ScheduleError:
        return []


def _inside_of_sums(schedule: Any, block: Any) -> list[Any]:
    """Return the serial loops inside of the innermost one that adds to a block's sums, the innermost loop first."""
    loops, axes = schedule.get_loops(block), schedule.get(block).iter_vars
    realize = schedule.get(loops[-1]).body if loops else None
    if not isinstance(realize, SBlockRealize) or realize.block.init is not None:
        return []
    pairs = zip(axes, realize.iter_values, strict=True)
    steps = [value for axis, value in pairs if axis.iter_type == IterVar.CommReduce]
    inside = []
    for loop, stmt in ((loop, schedule.get(loop)) for loop in reversed(loops)):
        if any(reads(step, stmt.loop_var) for step in steps) and int(stmt.extent) > 1:
            return inside
        if stmt.kind not in (ForKind.SERIAL, ForKind.VECTORIZED, ForKind.UNROLLED):
            return []
        if stmt.kind == ForKind.SERIAL and int(stmt.extent) > 1:
            inside.append(loop)
    return []


def bounded_unrolling(mod: Any) -> Any:
    """Return a scheduled module in which TVM unrolls no loop to more than `MOST` operations.

    Functions in which it would unroll none so far are returned unchanged.
    """

    def bounded(func: Any) -> Any:
        unrolled = _unrolled(func.body, 0)
        return func.with_body(unrolled.stmt) if unrolled.changed else None

    return with_lowered(mod, _may_exceed, bounded)


@dataclass(frozen=True)
class _Unrolled:
    """A statement as TVM's `UnrollLoop` will take it.

    Attributes:
        steps: stores of its body once it is unrolled; operations: of what they store.
        whole: no loop is left in it.
        changed: a loop in it was marked as one to keep.
    """

    stmt: Any
    steps: int = 0
    operations: int = 0
    whole: bool = True
    changed: bool = False


def _unrolled(stmt: Any, most: int) -> _Unrolled:
    """Return a statement inside of a pragma that unrolls up to `most` steps, with the loops marked that are to stay."""
    if isinstance(stmt, BufferStore):
        return _Unrolled(stmt, 1, _operations(stmt))
    if isinstance(stmt, SeqStmt):
        parts = [_unrolled(one, most) for one in stmt.seq]
        return _joined(SeqStmt([part.stmt for part in parts]), parts)
    if isinstance(stmt, IfThenElse):
        parts = [_unrolled(one, most) for one in (stmt.then_case, stmt.else_case) if one is not None]
        cases = [part.stmt for part in parts]
        return _joined(IfThenElse(stmt.condition, cases[0], cases[1] if cases[1:] else None), parts)
    if isinstance(stmt, AttrStmt):
        value: Any = stmt.value
        inner = _unrolled(stmt.body, int(value) if stmt.attr_key == _PRAGMA else most)
        return _joined(AttrStmt(stmt.node, stmt.attr_key, stmt.value, inner.stmt), [inner])
    if not isinstance(stmt, For):
        return _Unrolled(stmt, int(isinstance(stmt, tirx.Evaluate)))
    inner = _unrolled(stmt.body, most)
    loop = with_body(stmt, inner.stmt)
    if stmt.kind == ForKind.VECTORIZED:
        return _joined(loop, [inner])
    extent = int(stmt.extent) if isinstance(stmt.extent, IntImm) else 0
    steps, operations = extent * inner.steps, extent * inner.operations
    if stmt.kind == ForKind.UNROLLED and extent:
        return _Unrolled(loop, steps, operations, inner.whole, inner.changed)
    if not inner.whole or not extent or stmt.kind != ForKind.SERIAL or steps > most:
        return _Unrolled(loop, steps, operations, False, inner.changed)
    if operations <= MOST:
        return _Unrolled(loop, steps, operations, True, inner.changed)
    # The loops inside of it are still unrolled.
    kept = AttrStmt(loop.loop_var, _PRAGMA, IntImm("int32", inner.steps), loop)
    return _Unrolled(kept, steps, operations, False, True)


def _may_exceed(func: Any) -> bool:
    """Return whether as many stores as a pragma unrolls may have more than `MOST` operations."""
    steps = max((int(loop.annotations.get(_PRAGMA, 0)) for loop in nodes_in(func.body, For)), default=0)
    return steps > 0 and steps * max(map(_operations, nodes_in(func.body, BufferStore)), default=0) > MOST


def _joined(stmt: Any, parts: list[_Unrolled]) -> _Unrolled:
    return _Unrolled(
        stmt,
        sum(part.steps for part in parts),
        sum(part.operations for part in parts),
        all(part.whole for part in parts),
        any(part.changed for part in parts),
    )


def _operations(store: BufferStore) -> int:
    """Return the operations on floats of what is stored; what finds an element is none."""
    value: Any = store.value
    if isinstance(value, tirx.Max | tirx.Min):
        terms = [one.source for one in (value.a, value.b) if isinstance(one, TensorLoad)]
        if any(source.same_as(store.buffer) for source in terms):
            return _EXTREME
    return sum(str(getattr(one.ty, "dtype", "")).startswith("float") for one in nodes_in(value, Expr))
