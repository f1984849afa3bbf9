"""Lowered statements of TVM, as the passes over a program's loops read and change them."""

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import tvm
from tvm import IRModule, s_tir
from tvm.tirx import AttrStmt, For, IntImm, PrimFunc, SeqStmt, Var
from tvm_ffi import structural_map, structural_walk

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
"""The passes that make loops of the blocks of scheduled functions."""


def with_lowered(
    mod: Any,
    wanted: Callable[[Any], Any],
    change: Callable[[Any], Any],
    lower: Callable[[Any], Any] = LOOPS,
) -> Any:
    """Return a scheduled module in which some tensor functions are lowered and changed.

    Args:
        wanted: returns whether to lower a function; a module without any such is returned as it is.
        change: returns what takes the place of a lowered function; None leaves the scheduled one.
        lower: lowers the functions, all at once.
    """
    functions = {var: func for var, func in mod.functions_items() if isinstance(func, PrimFunc) and wanted(func)}
    if not functions:
        return mod
    changed = {var.name_hint: change(func) for var, func in lower(IRModule(functions)).functions_items()}
    every = {var: changed.get(var.name_hint) or func for var, func in mod.functions_items()}
    return IRModule(every, mod.attrs, mod.global_infos)


def nodes_in(tree: Any, *kinds: type) -> list[Any]:
    """Return the nodes of some types in an expression or statement."""
    nodes: list[Any] = []
    structural_walk(tree, [(kind, nodes.append) for kind in kinds])
    return nodes


def reads(tree: Any, var: Any) -> bool:
    """Return whether a variable is in an expression or statement."""
    return any(one.same_as(var) for one in nodes_in(tree, Var))


def call_name(expr: Any) -> str:
    """Return the name of the operator that an expression calls; empty for another expression."""
    return str(getattr(getattr(expr, "op", None), "name", ""))


def size_of(buffer: Any) -> int:
    """Return how many elements a buffer has."""
    return prod(int(extent) for extent in buffer.ty.shape)


def flat_index(indices: Sequence[Any], shape: Sequence[Any]) -> Any:
    """Return the position of an element among all of a tensor, in elements."""
    return reduce(lambda flat, one: flat * one[1] + one[0], zip(indices, shape, strict=True), IntImm("int64", 0))


def with_parts(stmt: Any, change: Callable[[Any], Any]) -> Any:
    """Return a sequence, an attribute or a loop with changed statements inside; another statement as it is."""
    if isinstance(stmt, SeqStmt):
        return SeqStmt([change(one) for one in stmt.seq])
    if isinstance(stmt, AttrStmt):
        return AttrStmt(stmt.node, stmt.attr_key, stmt.value, change(stmt.body))
    return with_body(stmt, change(stmt.body)) if isinstance(stmt, For) else stmt


def with_body(loop: Any, body: Any) -> Any:
    """Return a loop with another body."""
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)


def substituted(tree: Any, values: Sequence[tuple[Any, Any]]) -> Any:
    """Return an expression or statement with variables replaced."""

    def value(var: Any) -> Any:
        return next((new for old, new in values if var.same_as(old)), var)

    return structural_map(tree, (Var, value))
