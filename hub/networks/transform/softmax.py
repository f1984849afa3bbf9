"""Softmax over rows that fill vector registers: maximum and sum are taken by lanes, a row stays in the cache.

TVM reduces a row element by element, each waiting for the one before: floating-point sums may not change their order
unless somebody says so. Here the order is another one from the start, and rows that no lanes divide are filled up. The
design space is one program, found by MetaSchedule by the annotation `schedule_rule` of the softmax. What follows
element by element, as where it is quantised, is a part of it.
"""

from collections.abc import Callable, Iterable
from typing import Any

from tvm import te, topi
from tvm.ir import Op
from tvm.tirx import const

from .elementwise import blocks_before, extents_around, followers
from .relax_graph import TAKES_ELEMENTWISE, call_pass, extents_of, static_shape

# Lanes by which a row is reduced, the widest first, down to those that are added one by one.
_LANES, _FEW = (16, 8), 4
_LEAST = 32  # elements of a row that no lanes divide
_NAME = "softmax"


def lanes_of(row: int) -> int | None:
    """Return the lanes by which rows of a length are reduced; None where none divides it."""
    return next((lanes for lanes in _LANES if row % lanes == 0), None)


def by_lanes() -> Any:
    """Return a pass that computes softmax over a last axis of float32 by lanes, wherever it can."""
    softmax = Op.get("relax.nn.softmax")

    def rewrite(builder: Any, call: Any) -> Any:
        if call.op != softmax or str(call.ty.dtype) != "float32":
            return call
        shape = static_shape(call)
        if len(shape) < 2 or int(call.attrs.axis) not in (-1, len(shape) - 1):
            return call
        if lanes_of(shape[-1]) is None and shape[-1] < _LEAST:
            return call
        names = {"primfunc_name_hint": _NAME, "primfunc_attrs": {"op_pattern": TAKES_ELEMENTWISE}}
        return builder.call_te(_softmax, call.args[0], **names)

    return call_pass("TchubSoftmaxByLanes", rewrite)


def is_by_lanes(mod: Any, call: Any) -> bool:
    """Return whether a call of a module is of a softmax that `by_lanes` put there, of rows that lanes divide."""
    callee = call.args[0] if call.op == Op.get("relax.call_tir") else None
    attrs = mod[callee].attrs if callee is not None and callee.name_hint.startswith(_NAME) else None
    own = attrs is not None and attrs.get("op_pattern") == TAKES_ELEMENTWISE
    return own and lanes_of(static_shape(call)[-1]) is not None


def _softmax(x: Any) -> Any:
    *lead, row = x.shape
    filled: Any = x
    if lanes_of(int(row)) is None:
        nothing, whole = const(float("-inf"), "float32"), -(-int(row) // _LANES[0]) * _LANES[0]

        def padded(*i: Any) -> Any:
            return te.if_then_else(i[-1] < row, x(*i), nothing)

        filled = te.compute([*lead, *extents_of(whole)], padded, name="padded")
    largest = reduced_by_lanes(filled, te.max, "largest")
    shifted: Any = te.compute(filled.shape, lambda *i: filled(*i) - largest(*i[:-1], 0), name="shifted")
    powers = topi.fast_exp(shifted)
    total = reduced_by_lanes(powers, te.sum, "total")
    inverse: Any = te.compute(total.shape, lambda *i: 1.0 / total(*i), name="inverse")
    rule = {"schedule_rule": "tchub.softmax"}
    return te.compute(x.shape, lambda *i: powers(*i) * inverse(*i[:-1], 0), name="softmax", attrs=rule)


def reduced_by_lanes(x: Any, reduce: Callable[..., Any], name: str) -> Any:
    """Return rows reduced to one element, first by lanes, then by a few."""
    for lanes in (lanes_of(int(x.shape[-1])), _FEW, 1):
        x = _folded(x, reduce, lanes, name)
    return x


def _folded(x: Any, reduce: Callable[..., Any], lanes: Any, name: str) -> Any:
    axis: Any = te.reduce_axis((0, x.shape[-1] // lanes), name="k")
    shape = [*x.shape[:-1], lanes]
    return te.compute(shape, lambda *i: reduce(x(*i[:-1], axis * lanes + i[-1]), axis=axis), name=name)


def softmax(schedule: Any, block: Any) -> list[Any]:
    """Return the space of a softmax by lanes: all of a row after the other, vectorised."""
    before, extents = blocks_before(schedule, block), extents_around(schedule, block)
    reductions = [one for one in before if schedule.get(one).init is not None]
    *_, shifted, powers, _inverse = (one for one in before if schedule.get(one).init is None)
    chain = followers(schedule, block)
    last = chain[-1] if chain and extents_around(schedule, chain[-1]) == extents else block
    for one in (shifted, *(chain[:-1] if last is not block else ())):
        schedule.compute_inline(one)
    *lead, _ = schedule.get_loops(last)
    row = schedule.fuse(*lead)
    for one in reversed(before):
        if one is not shifted:
            schedule.annotate(one, "schedule_rule", "None")  # powers would be inlined, and computed twice
            schedule.compute_at(one, row, preserve_unit_loops=True)
    schedule.parallel(row)
    lanes = int(schedule.get(schedule.get_loops(reductions[0])[-2]).extent)
    for one in (powers, last) if extents[-1] % lanes == 0 else (powers,):  # LLVM vectorises what it can of the other
        schedule.vectorize(schedule.split(schedule.get_loops(one)[-1], [None, lanes])[1])
    vectorise_reductions(schedule, reductions)
    schedule.annotate(schedule.get_sblock("root"), "schedule_rule", "None")
    return [schedule]


def vectorise_reductions(schedule: Any, reductions: Iterable[Any]) -> None:
    """Vectorise reductions by lanes, each below the loop of its row."""
    for one in reductions:
        *_, lane, axis = schedule.get_loops(one)
        schedule.reorder(axis, lane)
        if int(schedule.get(axis).extent) <= _FEW:
            schedule.unroll(axis)
        several = int(schedule.get(lane).extent) > 1
        if several:
            schedule.vectorize(lane)
        start = schedule.decompose_reduction(one, axis)
        if several:
            schedule.vectorize(schedule.get_loops(start)[-1])
