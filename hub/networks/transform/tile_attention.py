"""Attention as one function on a CPU's tile registers (AMX), in bfloat16: two products with a softmax between them.

It is `fused_attention` with both products by tiles. Keys and values are stored first as tiles read them; then each
block of queries gets its scores, their softmax over whole rows in float32, and the product with the values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import e, log2
from typing import Any

from tvm import te
from tvm.tirx import Select, const, reinterpret

from ....zoo.tile_instructions import BFLOAT16, register_instructions
from .attention import softmax_input
from .elementwise import followers
from .exponentials import LEAST_EXPONENT, polynomial
from .fused_attention import AttentionShape, Fuser, blocks_of_attention, matches, mixed_scores
from .relax_graph import extents_of, function_pass
from .softmax import reduced_by_lanes, vectorise_reductions
from .tile_products import ATTENTION, rounded, summed, widened
from .tile_schedules import in_tiles, vectorise
from .tile_shapes import LEAST_DEPTH, LEAST_ROWS, TILE, whole

_MOST_TILES = 8  # of a block of queries
_UNROLLED = 8  # tiles of a row
# 2 ** f for f from -0.5 to 0.5, the constant first, to 7.5e-5: bfloat16 rounds by up to 2e-3.
_POWERS = (0.99992807, 0.69326099, 0.24261112, 0.05517166)
# To add it rounds a float32 to a whole number, which its last bits then are.
_SHIFT = 1.5 * 2**23


def tile_attentions() -> Any:
    """Return a pass that computes attention by tile registers, in bfloat16; what goes in and out stays in float32."""

    def fuser(mod: Any, func: Any) -> Any:
        every = matches(func, softmax_input)
        large = {call: one for call, one in every.items() if _fills_tiles(one.shape)}
        return Fuser(mod, large, _attention, "tile_attention", TILE)

    return function_pass("TchubTileAttentions", fuser)


def _fills_tiles(shape: AttentionShape) -> bool:
    return shape.rows >= LEAST_ROWS and min(shape.keys, shape.width, shape.values) >= LEAST_DEPTH


def _attention(shape: AttentionShape, query: Any, key: Any, value: Any, *masks: Any) -> Any:
    none = {"schedule_rule": "None"}  # the rule of the last block schedules them all
    heads = query.shape[:-2]
    rows, columns, width, values = map(whole, (shape.rows, shape.columns, shape.width, shape.values))
    # A mask may hold the least number that there is: what it leaves is multiplied after the largest is subtracted.
    before, after = (1.0, log2(e)) if masks else (log2(e), 1.0)

    def compute(name: str, extents: tuple[int, ...], element: Callable[..., Any]) -> Any:
        return te.compute([*heads, *extents_of(*extents)], element, name=name, attrs=none)

    def bits(x: Any, limits: tuple[int, int], *i: Any) -> Any:
        inside = te.all(i[-2] < limits[0], i[-1] < limits[1])
        return te.if_then_else(inside, rounded(x(*i)), const(0, "uint16"))

    def pairs(x: Any, limits: tuple[int, int], *i: Any) -> Any:
        *head, column, pair, lane = i
        low, high = (bits(x, limits, *head, 2 * pair + n, column * TILE + lane).astype("uint32") for n in range(2))
        return low | high << const(16, "uint32")

    def product(left: Any, right: Any, depth: int) -> Callable[..., Any]:
        def term(*i: Any) -> Any:
            *head, m, n = i
            k = summed(depth, "k")
            pair = right(*head, n // TILE, k // 2, n % TILE) >> (k % 2 * 16).astype("uint32")
            return te.sum(widened(left(*head, m, k)) * reinterpret("float32", pair << const(16, "uint32")), axis=k)

        return term

    def power(*i: Any) -> Any:
        x = mixed(*i) - largest(*i[:-1], 0)
        bits = _power_of_two(x * const(after, "float32") if masks else x)
        # Of a row that masks cover wholly all keys weigh 1, and those that do not count nothing even there.
        return Select(i[-1] < shape.keys, bits, const(0, "uint16")) if shape.keys < columns else bits

    def summed_up(x: Any, axis: Any) -> Any:
        return te.sum(widened(x) if str(x.ty.dtype) == "uint16" else x, axis=axis)

    queries = compute("queries", (rows, width), partial(bits, query, (shape.rows, shape.width)))
    keys = compute("keys", (columns // TILE, width // 2, TILE), partial(pairs, key, (shape.width, shape.keys)))
    numbers = compute("values", (values // TILE, columns // 2, TILE), partial(pairs, value, (shape.keys, shape.values)))
    scores = compute("scores", (rows, columns), product(queries, keys, width))
    mixed = mixed_scores(shape, scores, masks, before)
    largest = reduced_by_lanes(mixed, te.max, "largest")
    powers = compute("powers", (rows, columns), power)
    total = reduced_by_lanes(powers, summed_up, "total")
    inverse: Any = te.compute(total.shape, lambda *i: 1.0 / total(*i), name="inverse", attrs=none)
    context = compute("context", (rows, values), product(powers, numbers, columns))
    # Of whole tiles, which the result's rows are not.
    divided = compute("divided", (rows, values), lambda *i: inverse(*i[:-1], 0) * context(*i))
    result, rule = [*query.shape[:-1], value.shape[-1]], {"schedule_rule": ATTENTION}
    return te.compute(result, lambda *i: divided[i], name="attention", attrs=rule)


def _power_of_two(x: Any) -> Any:
    """Return the bits of 2 ** x in bfloat16, for x of at most 0; what is less than -126 counts as that."""
    x = te.max(x, const(LEAST_EXPONENT, "float32"))
    shifted = reinterpret("uint32", x + const(_SHIFT, "float32"))
    # By way of its bits, or TVM finds that nothing was added.
    rest = x - (reinterpret("float32", shifted) - const(_SHIFT, "float32"))
    bits = reinterpret("uint32", polynomial(rest, _POWERS)) + (shifted << const(23, "uint32"))
    return (bits + const(0x8000, "uint32") >> const(16, "uint32")).astype("uint16")


def tile_attention(schedule: Any, block: Any) -> list[Any]:
    """Return the space of an attention by tiles and what elementwise follows it: how many rows are computed at a time.

    What follows with other axes or several results is left as it is, unscheduled.
    """
    register_instructions()
    axes = len(schedule.get_loops(block))
    (divided,) = schedule.get_producers(block)
    scores, mixed, maxima, powers, totals, inverse, context = blocks_of_attention(schedule, divided)
    queries, keys = sorted(schedule.get_producers(scores), key=lambda one: len(schedule.get_loops(one)))
    values = next(one for one in schedule.get_producers(context) if len(schedule.get_loops(one)) > axes)
    if not (chain := followers(schedule, block)):
        return [schedule]
    *inlined, last = chain
    if len(schedule.get_loops(last)) != axes:
        return [schedule]
    for one in (*inlined, mixed):
        schedule.compute_inline(one)

    *heads, rows, _ = schedule.get_loops(divided)
    row, _ = schedule.split(rows, [None, TILE])
    outer, _ = schedule.split(row, schedule.sample_perfect_tile(row, 2, _MOST_TILES))
    block_of_rows = schedule.fuse(*heads, outer)
    schedule.parallel(block_of_rows)
    schedule.reverse_compute_at(last, block_of_rows, preserve_unit_loops=True)
    schedule.compute_at(context, block_of_rows, preserve_unit_loops=True)
    for one in (inverse, *totals, powers):
        schedule.compute_at(one, block_of_rows, preserve_unit_loops=True)
    column, lanes = schedule.split(schedule.get_loops(powers)[-1], [None, TILE])
    schedule.vectorize(lanes)
    if int(schedule.get(column).extent) <= _UNROLLED:
        schedule.unroll(column)
    for one in maxima:
        schedule.compute_at(one, block_of_rows, preserve_unit_loops=True)
    vectorise_reductions(schedule, (*maxima, *totals))
    schedule.compute_at(scores, block_of_rows, preserve_unit_loops=True)
    schedule.compute_at(queries, block_of_rows, preserve_unit_loops=True)
    for one in (last, divided, queries):
        vectorise(schedule, one)
    for one in (keys, values):
        *before, _, lanes = schedule.get_loops(one)
        schedule.parallel(schedule.fuse(*before))
        schedule.vectorize(lanes)
    for one in (scores, context):
        in_tiles(schedule, one, BFLOAT16)
    for one in (schedule.get_sblock("root"), *totals, *maxima):
        schedule.annotate(one, "schedule_rule", "None")
    return [schedule]
