"""Products of quantised data by quantised data, as attention's are, by the instructions for numbers of 8 bits.

No factor is a weight that could be stored for it before, so that the function stores both: the rows of the first as
tiles, and of the second four terms of a column as a word. Zero points are subtracted from the sums:
sum((a - x) * (b - y)) = sum(a * b) - x * sum(b) - y * sum(a) + terms * x * y.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.tirx import const, reinterpret

from ....zoo.tile_instructions import Factors, register_instructions
from .elementwise import followers
from .relax_graph import TAKES_ELEMENTWISE, extents_of, static_shape
from .tile_products import (
    OF_DATA,
    PRODUCT,
    VECTOR_PRODUCT,
    stored_bits,
    summed,
)
from .tile_schedules import factors_of_block, in_tiles, vectorise
from .tile_shapes import LEAST_DEPTH, LEAST_GAIN, LEAST_ROWS, TILE, whole

_SIGN = 128  # to turn the bit of the sign of a number of 8 bits adds as much, or takes it off
_MOST_ROWS = 256  # that are computed at a time
_MOST_TERMS = ((1 << 31) - 1) // 255**2  # whose sum is a number of 32 bits, whatever they are


def is_worth_bytes(call: Any, factors: Factors) -> bool:
    """Return whether a product of two tensors fills tiles well enough."""
    left, right = (static_shape(one) for one in call.args)
    if min(len(left), len(right)) < 2 or left[:-2] != right[:-2]:
        return False
    rows, terms, columns = left[-2], left[-1], right[-1]
    if rows < LEAST_ROWS or min(terms, columns) < LEAST_DEPTH or terms > _MOST_TERMS:
        return False
    padded = whole(rows, factors.rows) * whole(columns) * whole(terms, factors.terms)
    return not factors.lanes or padded < LEAST_GAIN * rows * columns * terms


def product_of_bytes(
    builder: Any, pair: Sequence[tuple[Any, Sequence[int]]], zeros: tuple[int, int], factors: Factors
) -> Any:
    """Emit a product of numbers of 8 bits less their zero points, in int32, and return its call.

    Args:
        pair: both factors, and how the axes of each are read: as (..., rows, terms) and as (..., terms, columns).
        zeros: point of each.
        factors: those of data as the first one is.
    """
    (left, left_axes), (right, right_axes) = pair
    turned = _SIGN if str(right.ty.dtype) == "uint8" else 0  # the second factor of the instructions has a sign
    zero, other_zero = zeros[0] + factors.offset, zeros[1] - turned
    # As arguments, so that the layers of a network are one task.
    numbers = [zero, other_zero, static_shape(left)[left_axes[-1]] * zero * other_zero]
    shifted = zero != 0, other_zero != 0

    def compute(left: Any, right: Any, zeros: Any) -> Any:
        pair = _permuted(left, left_axes), _permuted(right, right_axes)
        return _product(pair, zeros, turned, factors, shifted)

    return builder.call_te(
        compute,
        left,
        right,
        relax.const(np.array(numbers, "int32")),
        primfunc_name_hint="tile_product",
        primfunc_attrs={"op_pattern": TAKES_ELEMENTWISE},
    )


def _permuted(x: Any, axes: Sequence[int]) -> tuple[list[Any], Callable[..., Any]]:
    """Return the extents of a tensor with its axes in some order, and what gives an element of it."""
    places = [axes.index(axis) for axis in range(len(axes))]
    return [x.shape[axis] for axis in axes], lambda *i: x(*(i[n] for n in places))


def _product(
    pair: Sequence[tuple[list[Any], Callable[..., Any]]],
    zeros: Any,
    turned: int,
    factors: Factors,
    shifted: tuple[bool, bool],
) -> Any:
    """Return the tensor of a product of two tensors, given as `_permuted` does, whose zero points may be shifted."""
    (extents, left), ((*_, columns), right) = pair
    *heads, rows, terms = extents
    rows, terms, columns = map(int, (rows, terms, columns))
    depth, none = whole(terms, factors.terms), {"schedule_rule": "None"}

    def compute(name: str, extents: tuple[int, ...], element: Any, rule: Any = none) -> Any:
        return te.compute([*heads, *extents_of(*extents)], element, name=name, attrs=rule)

    def element(*i: Any) -> Any:
        *head, part, m, lane = i
        k = part * factors.terms + lane
        inside = te.all(m < rows, k < terms)
        return te.if_then_else(inside, stored_bits(factors, left(*head, m, k)), const(0, factors.data))

    def word(*i: Any) -> Any:
        *head, column, group, lane = i
        n = column * TILE + lane

        def number(k: Any) -> Any:
            bits = reinterpret("uint8", right(*head, k, n)) ^ const(turned, "uint8")
            return te.if_then_else(te.all(k < terms, n < columns), bits, const(0, "uint8")).astype("uint32")

        return reduce(
            lambda low, k: low | number(4 * group + k) << const(8 * k, "uint32"), (1, 2, 3), number(4 * group)
        )

    def weight(*i: Any) -> Any:
        *head, n, k = i
        packed = quads[(*head, n // TILE, k // 4, n % TILE)] >> (k % 4 * 8).astype("uint32")
        return packed.astype("int8").astype("int32")

    def term(*i: Any) -> Any:
        *head, m, n = i
        k = summed(depth, "k")
        factor = stored[(*head, k // factors.terms, m, k % factors.terms)].astype("int32")
        return te.sum(factor * weight(*head, n, k), axis=k)

    def row_total(*i: Any) -> Any:
        *head, m = i
        part, lane = summed(depth // factors.terms, "part"), summed(factors.terms, "lane")
        return te.sum(stored[(*head, part, m, lane)].astype("int32"), axis=[part, lane])

    def column_total(*i: Any) -> Any:
        *head, n = i
        k = summed(depth, "k")
        return te.sum(weight(*head, n, k), axis=k)

    def less_zeros(*i: Any) -> Any:
        *head, m, n = i
        sums = products[i]
        if column_totals is not None:
            sums = sums - column_totals[(*head, n)] * zeros[0]
        if row_totals is not None:
            sums = sums - row_totals[(*head, m)] * zeros[1]
        return sums + zeros[2] if all(shifted) else sums

    height, width = whole(rows, factors.rows), whole(columns)
    stored = compute("stored", (depth // factors.terms, height, factors.terms), element)
    quads = compute("words", (width // TILE, depth // 4, TILE), word)
    name = f"{VECTOR_PRODUCT}{factors.size}" if factors.lanes else PRODUCT
    products = compute("products", (height, width), term, {"schedule_rule": name + OF_DATA})
    column_totals = compute("column_totals", (width,), column_total) if shifted[0] else None
    row_totals = compute("row_totals", (height,), row_total) if shifted[1] else None
    sums = compute("sums", (height, width), less_zeros)  # of whole tiles, which the result's rows are not
    return compute("tile_product", (rows, columns), lambda *i: sums[i])


def product_of_data(schedule: Any, block: Any) -> list[Any]:
    """Return the space of such a product and what elementwise follows it: how many rows are computed at a time."""
    register_instructions()
    quads, stored = sorted(schedule.get_producers(block), key=lambda one: _type_of(schedule, one) != "uint32")
    factors = factors_of_block(schedule.get(block))
    own, (sums,) = schedule.get(block).name_hint, schedule.get_consumers(block)
    chain = [one for one in followers(schedule, sums) if schedule.get(one).name_hint != schedule.get(sums).name_hint]
    if not chain:  # several are last
        return [schedule]
    *inlined, last = chain
    for one in inlined:
        schedule.compute_inline(one)

    *heads, m, _ = schedule.get_loops(sums)
    row, _ = schedule.split(m, [None, factors.rows])
    rows, _ = schedule.split(row, schedule.sample_perfect_tile(row, 2, _MOST_ROWS // factors.rows))
    block_of_rows = schedule.fuse(*heads, rows)
    schedule.parallel(block_of_rows)
    schedule.reverse_compute_at(last, block_of_rows, preserve_unit_loops=True)
    totals = [one for one in schedule.get_producers(sums) if schedule.get(one).name_hint != own]
    of_columns, of_rows = ([one for one in totals if _reads(schedule, one, name)] for name in ("uint32", factors.data))
    for one in (block, *of_rows, stored):
        schedule.compute_at(one, block_of_rows, preserve_unit_loops=True)
    for one in (last, sums):
        vectorise(schedule, one)
    schedule.parallel(schedule.fuse(*schedule.get_loops(quads)[:-2]))
    for one in of_columns:
        _sum_columns(schedule, one)
    in_tiles(schedule, block, factors)
    for one in (schedule.get_sblock("root"), *totals):
        schedule.annotate(one, "schedule_rule", "None")
    return [schedule]


def _sum_columns(schedule: Any, block: Any) -> None:
    """Add up the columns of a matrix row by row, many at a time."""
    *heads, column, term = schedule.get_loops(block)
    schedule.reorder(term, column)
    if heads:
        schedule.parallel(schedule.fuse(*heads))
    vectorise(schedule, block)
    schedule.decompose_reduction(block, term)


def _reads(schedule: Any, block: Any, dtype: str) -> bool:
    return any(str(one.source.dtype) == dtype for one in schedule.get(block).reads)


def _type_of(schedule: Any, block: Any) -> str:
    """Return the type of the numbers that a block computes."""
    return str(schedule.get(block).writes[0].source.dtype)
