"""Attention as one function: scores, softmax and the product with the values, a block of queries after the other.

As three functions the scores of all heads go through memory; here those of a block of rows stay in the core's caches,
the scale is part of the exponential, and a row's sum divides the result, which is shorter. Rows are held whole, so that
their softmax is exact. It is GTCO's customized sketch of two products with a softmax between them (Bai et al. 2024,
section III-B), for CPUs. MetaSchedule finds the design space by the annotation `schedule_rule`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import e, log2
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx import IntImm, Select, const

from .attention import follow_scores, match_calls, padded
from .elementwise import followers
from .exponentials import power_of_two
from .relax_graph import TAKES_ELEMENTWISE, constant_values, function_pass, operator_name, static_shape
from .softmax import is_by_lanes, lanes_of, reduced_by_lanes, vectorise_reductions

op: Any = relax.op

# Rows of a product's tile, registers of a row, and lanes of one where no vector register divides the columns, at most.
_ROWS, _REGISTERS, _LANES = 16, 4, 16
# Exponent of two that a masked key weighs: nothing beside another key, and its products with values are numbers that a
# core multiplies at full speed, which those below 2 ** -126 are not.
_MASKED = -64.0
_BETWEEN = ("add", "divide", "multiply", "reshape")  # which may stand between product and softmax


@dataclass(frozen=True, order=True)
class AttentionShape:
    """Attention that can be one function.

    Attributes:
        heads: extents of the axes before rows and columns.
        rows, columns: queries and keys, those included that pad them.
        keys: those that count.
        width, values: of a key and of a value.
        scale: of the scores.
        masks: rows of each mask (rows, columns) that is added to the scaled scores: 1 or all.
    """

    heads: tuple[int, ...]
    rows: int
    columns: int
    keys: int
    width: int
    values: int
    scale: float
    masks: tuple[int, ...] = ()


@dataclass(frozen=True)
class MatchedAttention:
    """The inputs of an attention, and its shape."""

    shape: AttentionShape
    query: Any
    key: Any
    masks: tuple[Any, ...]


def fuse_attention(shapes: Collection[AttentionShape]) -> Any:
    """Return a pass that computes the attentions of these shapes by one function each."""

    def fuser(mod: Any, func: Any) -> Any:
        wanted = {call: one for call, one in _by_lanes(mod, func).items() if one.shape in shapes}
        return Fuser(mod, wanted, _attention, "attention")

    return function_pass("TchubFuseAttention", fuser)


def attentions(mod: Any) -> set[AttentionShape]:
    """Return the attentions of a Relax module, as `for_inference` gives it, that `fuse_attention` can compute."""
    functions = (func for func in mod.functions.values() if isinstance(func, relax.Function))
    return {one.shape for func in functions for one in _by_lanes(mod, func).values()}


def _by_lanes(mod: Any, func: Any) -> dict[Any, MatchedAttention]:
    """Return the attentions of a function whose softmax is by lanes."""
    return matches(func, lambda call: call.args[1].fields[0] if is_by_lanes(mod, call) else None)


@mutator
class Fuser(PyExprMutator):
    """Computes attentions by one function each.

    Args:
        matches: by the call that each ends in.
        compute: gives the tensor of an attention, by its shape and the tensors of query, key, value and masks.
        name: of the function.
        whole: masks are given for multiples of so many queries and keys.
    """

    def __init__(
        self,
        mod: Any,
        matches: dict[Any, MatchedAttention],
        compute: Callable[..., Any],
        name: str,
        whole: int = 1,
    ) -> None:
        super().__init__(mod)
        self.matches, self.compute, self.name, self.whole = matches, compute, name, whole

    def visit_call_(self, call: Any) -> Any:
        if (one := self.matches.get(call)) is None:
            return super().visit_call_(call)
        masks = [
            self._mask(mask, (rows, one.shape.columns)) for mask, rows in zip(one.masks, one.shape.masks, strict=True)
        ]
        return self.builder_.call_te(
            partial(self.compute, one.shape),
            *map(self.visit_expr, (one.query, one.key, call.args[1])),
            *masks,
            primfunc_name_hint=self.name,
            primfunc_attrs={"op_pattern": TAKES_ELEMENTWISE},
        )

    def _mask(self, mask: Any, extents: tuple[int, int]) -> Any:
        """Return a mask of two axes with zeros for the rows and columns that fill up the others."""
        given = self.builder_.emit(op.reshape(self.visit_expr(mask), extents))
        more = {axis: -(-n // self.whole) * self.whole for axis, n in zip((-2, -1), extents, strict=True) if n > 1}
        return padded(self.builder_, given, more, alone=constant_values(mask) is None)


def matches(func: Any, softmax_input: Callable[[Any], Any]) -> dict[Any, MatchedAttention]:
    """Return the attentions of a function, by the call of their product with the values.

    Args:
        softmax_input: gives what a call of a softmax over the last axis reads; None for another call.
    """

    def match(call: Any, producer: Callable[[Any], Any]) -> MatchedAttention | None:
        followed = follow_scores(call, producer, softmax_input, _BETWEEN)
        if followed is None:
            return None
        scores, chain = followed
        query, key, value = map(static_shape, (*scores.args, call.args[1]))
        if len(query) < 3 or not query[:-2] == key[:-2] == value[:-2] or str(scores.ty.dtype) != "float32":
            return None
        rows, columns = static_shape(call.args[0])[-2:]
        if (mixed := _mixed(chain, columns)) is None:
            return None
        scale, keys, masks = mixed
        mask_rows = tuple((1, 1, *static_shape(mask))[-2] for mask in masks)
        shape = AttentionShape(query[:-2], rows, columns, keys, query[-1], value[-1], scale, mask_rows)
        known = set(mask_rows) <= {1, rows}
        return MatchedAttention(shape, scores.args[0], scores.args[1], tuple(masks)) if known else None

    return match_calls(func, "matmul", match)


def _mixed(chain: Sequence[tuple[Any, int]], columns: int) -> tuple[float, int, list[Any]] | None:
    """Return what stands between product and softmax as a scale, the keys that count, and masks; None for others."""
    scale, keys, masks = 1.0, columns, []
    for step, position in chain:
        if operator_name(step) == "reshape":
            continue
        other = step.args[1 - position]
        values, shape = constant_values(other), static_shape(other)
        if operator_name(step) in ("multiply", "divide"):
            if values is None or values.size != 1 or masks or (operator_name(step) == "divide" and position):
                return None
            scale = scale * float(values.item()) if operator_name(step) == "multiply" else scale / float(values.item())
        elif operator_name(step) != "add" or shape[-1:] != (columns,) or any(n != 1 for n in shape[:-2]):
            return None
        elif values is not None and keys == columns and (counted := _keys(values)):
            keys = counted
        elif values is not None and not values.any():
            continue
        else:
            masks.append(other)
    return scale, keys, masks


def _keys(mask: np.ndarray[Any, Any]) -> int | None:
    """Return how many keys a mask lets count where it is 0 for the first ones and -inf for the others; else None."""
    keys = int((mask == 0).sum())
    right = mask.size == mask.shape[-1] and bool((mask.ravel()[keys:] == -np.inf).all())
    return keys if right and keys > 0 and not mask.ravel()[:keys].any() else None


def _attention(shape: AttentionShape, query: Any, key: Any, value: Any, *masks: Any) -> Any:
    none = {"schedule_rule": "None"}  # the rule of the last block schedules them all
    wide, long = (te.reduce_axis((0, IntImm("int64", n)), name="k") for n in (shape.width, shape.keys))
    # A mask may hold the least number that there is: what it leaves is multiplied after the largest is subtracted.
    before, after = (1.0, log2(e)) if masks else (log2(e), 1.0)

    def score(*i: Any) -> Any:
        return te.sum(query(*i[:-1], wide) * key(*i[:-2], wide, i[-1]), axis=wide)

    def power(*i: Any) -> Any:
        x = mixed(*i) - largest(*i[:-1], 0)
        x = power_of_two(x * const(after, "float32"), _MASKED) if masks else power_of_two(x)
        return Select(i[-1] < shape.keys, x, const(0.0, "float32")) if shape.keys < shape.columns else x

    extents = [*query.shape[:-1], key.shape[-1]]
    scores: Any = te.compute(extents, score, name="scores", attrs=none)
    mixed = mixed_scores(shape, scores, masks, before)
    largest = reduced_by_lanes(mixed, te.max, "largest")
    powers: Any = te.compute(extents, power, name="powers", attrs=none)
    total = reduced_by_lanes(powers, te.sum, "total")
    inverse: Any = te.compute(total.shape, lambda *i: 1.0 / total(*i), name="inverse", attrs=none)
    context: Any = te.compute(
        [*query.shape[:-1], value.shape[-1]],
        lambda *i: te.sum(powers(*i[:-1], long) * value(*i[:-2], long, i[-1]), axis=long),
        name="context",
        attrs=none,
    )
    rule = {"schedule_rule": "tchub.attention"}
    return te.compute(context.shape, lambda *i: inverse(*i[:-1], 0) * context(*i), name="attention", attrs=rule)


def mixed_scores(shape: AttentionShape, scores: Any, masks: Sequence[Any], scale: float) -> Any:
    """Return scores times both scales, with masks; those of keys that do not count are the least number there is."""

    def mix(*i: Any) -> Any:
        x = scores(*i) * const(shape.scale * scale, "float32")
        for mask, rows in zip(masks, shape.masks, strict=True):
            x = x + mask(i[-2] if rows > 1 else 0, i[-1])
        all_count = int(scores.shape[-1]) == shape.keys
        return x if all_count else Select(i[-1] < shape.keys, x, te.min_value("float32"))

    return te.compute(scores.shape, mix, name="mixed", attrs={"schedule_rule": "None"})


def attention(schedule: Any, block: Any) -> list[Any]:
    """Return the space of an attention and what elementwise follows it: three tiles, of rows and of both columns.

    What follows with other axes or several results is left as it is, unscheduled.
    """
    scores, mixed, maxima, powers, totals, inverse, context = blocks_of_attention(schedule, block)
    if not (chain := followers(schedule, block)):
        return [schedule]
    *inlined, last = chain
    *heads, rows, column = schedule.get_loops(last)
    if any(len(schedule.get_loops(one)) != len(heads) + 2 for one in chain):
        return [schedule]
    for one in inlined:
        schedule.compute_inline(one)

    # Rows that pad the others may be left out of the result: it is the scores' that are tiled.
    tile = schedule.sample_perfect_tile(schedule.get_loops(powers)[-2], 3, _ROWS)
    outer, middle, inner = schedule.split(rows, tile)
    outer_column, in_tile, lanes = _tiled(schedule, column)
    schedule.reorder(*heads, outer, outer_column, middle, inner, *in_tile)
    rows_block = schedule.fuse(*heads, outer)
    schedule.parallel(rows_block)
    in_registers(schedule, inner, *in_tile)
    compute_in_registers(schedule, context, middle, lanes)

    for one in (inverse, *totals, powers):
        schedule.compute_at(one, rows_block, preserve_unit_loops=True)
    *_, row, column = schedule.get_loops(powers)
    schedule.vectorize(schedule.split(column, [None, lanes_of(int(schedule.get(column).extent))])[1])
    for one in (*reversed(totals), inverse):
        schedule.reverse_compute_at(one, row, preserve_unit_loops=True)
    for one in maxima:
        schedule.compute_at(one, row, preserve_unit_loops=True)
    vectorise_reductions(schedule, (*maxima, *totals))

    schedule.compute_at(mixed, rows_block, preserve_unit_loops=True)
    *_, row, column = schedule.get_loops(mixed)
    middle, inner = schedule.split(row, tile[1:])
    outer_column, in_tile, lanes = _tiled(schedule, column)
    schedule.reorder(outer_column, middle, inner, *in_tile)
    in_registers(schedule, inner, *in_tile)
    compute_in_registers(schedule, scores, middle, lanes)
    # Last: before anything else is changed, TVM writes an annotation into the module that the schedule was made of.
    for one in (schedule.get_sblock("root"), *totals, *maxima):
        schedule.annotate(one, "schedule_rule", "None")
    return [schedule]


def blocks_of_attention(schedule: Any, block: Any) -> tuple[Any, Any, list[Any], Any, list[Any], Any, Any]:
    """Return the blocks of an attention: scores, mixed scores, maxima, powers, totals, inverse, context.

    The argument is the block that divides. Of maxima and totals the last one comes first.
    """

    def sums_last(one: Any) -> tuple[Any, Any]:
        first, last = sorted(schedule.get_producers(one), key=lambda one: schedule.get(one).init is not None)
        return first, last

    inverse, context = sums_last(block)
    totals = _reductions_before(schedule, inverse)
    (powers,) = schedule.get_producers(totals[-1])
    mixed, largest = sums_last(powers)
    maxima = [largest, *_reductions_before(schedule, largest)]
    (scores,) = schedule.get_producers(mixed)
    return scores, mixed, maxima, powers, totals, inverse, context


def _reductions_before(schedule: Any, block: Any) -> list[Any]:
    """Return the reductions by lanes that a block is the last one of, the last one first, the block apart."""
    chain = [block]
    while schedule.get(producer := schedule.get_producers(chain[-1])[0]).init is not None:
        chain.append(producer)
    return chain[1:]


def _tiled(schedule: Any, loop: Any) -> tuple[Any, tuple[Any, Any], Any]:
    """Split a loop over columns into tiles, and registers and lanes of a tile; the last result is the lanes' number."""
    lanes = lanes_of(int(schedule.get(loop).extent))
    if lanes:
        registers, vector = schedule.split(loop, [None, lanes])
        outer, inner = schedule.split(registers, schedule.sample_perfect_tile(registers, 2, _REGISTERS))
        return outer, (inner, vector), lanes
    tile = schedule.sample_perfect_tile(loop, 2, _LANES)
    registers, vector = schedule.split(loop, tile)
    outer, inner = schedule.split(registers, [None, 1])
    return outer, (inner, vector), tile[1]


def in_registers(schedule: Any, *tile: Any) -> None:
    """Unroll the loops of a tile and vectorise the last one."""
    *unrolled, lanes = tile
    for loop in unrolled:
        schedule.unroll(loop)
    schedule.vectorize(lanes)


def compute_in_registers(schedule: Any, block: Any, loop: Any, lanes: Any) -> None:
    """Compute the tile of a product below a loop, in registers while its depth is gone through."""
    schedule.compute_at(block, loop, preserve_unit_loops=True)
    *_, rows, column, depth = schedule.get_loops(block)
    tile = rows, *schedule.split(column, [None, lanes])
    schedule.reorder(depth, *tile)
    in_registers(schedule, *tile)
    schedule.set_scope(block, 0, "local")
    start = schedule.decompose_reduction(block, depth)
    in_registers(schedule, *schedule.get_loops(start)[-3:])
