"""Winograd's convolution: 3x3 kernels by 2.25 or 4 times fewer multiplications, as two transforms around a product.

A tile of m x m pixels comes from (m + 2) x (m + 2) products instead of 9 m m (Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", 2015). The weights are transformed when the network is compiled. What it costs in
accuracy is small beside the output check's tolerance; tests/hub/networks/transform/test_winograd.py states it. The
transforms' design spaces are found by MetaSchedule by the annotation `schedule_rule` of their blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from operator import methodcaller
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.ir import Op
from tvm.tirx import IntImm, Select, const

from .elementwise import followers
from .relax_graph import OPAQUE, TAKES_ELEMENTWISE, call_pass, constant_values, extents_of, is_channels_last

# Points at which the polynomials are evaluated, by the pixels of a tile: those of the least error (Barabasz et al.).
_POINTS = {2: (0.0, -1.0, 1.0), 4: (0.0, -1.0, 1.0, 0.5, -2.0)}
_KERNEL = 3
# Pixels of the tiles, at most, whose transforms have halves and quarters alone: sums of whole numbers stay exact.
_EXACT = 2
# Tiles of 4 need 2.25 times the weights of tiles of 2, which a network's other layers have driven out of the caches. A
# core computes 4 operations (EPYC Genoa) to 16 (Xeon Cascade Lake) while it reads a byte of them; 2 is for slower ones.
# Tiles that cost least for any of these are measured.
_OPERATIONS_A_BYTE = (2, 4, 8, 16)
_LANES = 64  # floats of a tile's innermost loop, at most


@dataclass(frozen=True, order=True)
class ConvShape:
    """A convolution that Winograd's algorithm can compute, and how: 3 x 3, of stride 1, on channels-last images.

    Attributes:
        batch, height, width, inputs: of the image.
        outputs: channels of the result.
        padding: rows or columns at the top, left, bottom and right.
        tile: pixels of a tile's side.
    """

    batch: int
    height: int
    width: int
    inputs: int
    outputs: int
    padding: tuple[int, int, int, int]
    tile: int

    @classmethod
    def of_call(cls, call: Any) -> list[ConvShape]:
        """Return the ways to compute a call of Relax's conv2d, small tiles first; none where nothing is gained."""
        attrs, types = call.attrs, [arg.ty for arg in call.args[:2]]
        image, weight = (list(one.shape or ()) for one in types)
        plain = (
            is_channels_last(call)
            and [int(x) for x in (*attrs.strides, *attrs.dilation, attrs.groups)] == [1] * 5
            and all(str(one.dtype) == "float32" for one in (*types, call.ty))
            and all(isinstance(extent, IntImm) for extent in (*image, *weight))
            and [int(extent) for extent in weight[:2]] == [_KERNEL, _KERNEL]
            and constant_values(call.args[1]) is not None
        )
        if not plain:
            return []
        sides = tuple(int(x) for x in attrs.padding)
        sizes = [m for m in (1, *_POINTS) if m <= _EXACT or not _are_whole(constant_values(call.args[1]))]
        ways = [cls(*map(int, image), int(weight[3]), sides, m) for m in sizes]  # type: ignore[arg-type]
        cheapest = {min(ways, key=methodcaller("_cost", operations)) for operations in _OPERATIONS_A_BYTE}
        return sorted(cheapest - {ways[0]})

    @property
    def extents(self) -> tuple[int, int]:
        """Return the result's height and width."""
        top, left, bottom, right = self.padding
        return self.height + top + bottom - 2, self.width + left + right - 2

    @property
    def tiles(self) -> tuple[int, int]:
        """Return how many tiles the result has in rows and columns, the last ones cut off."""
        height, width = self.extents
        return -(-height // self.tile), -(-width // self.tile)

    def _cost(self, operations: int) -> int:
        """Return the operations for each pair of channels; a tile of 1 is without transforms.

        Args:
            operations: that a byte of weights counts as.
        """
        (rows, columns), products = self.tiles, (self.tile + _KERNEL - 1) ** 2
        return 2 * self.batch * rows * columns * products + 4 * operations * products


def winograd(shapes: Collection[ConvShape]) -> Any:
    """Return a pass that computes the convolutions of these shapes by Winograd's algorithm, by the largest tiles given.

    What follows a convolution, a bias or an activation say, becomes part of the last transform's kernel.
    """
    conv2d = Op.get("relax.nn.conv2d")
    op: Any = relax.op

    def rewrite(builder: Any, call: Any) -> Any:
        ways = [way for way in ConvShape.of_call(call) if way in shapes] if call.op == conv2d else []
        if not ways:
            return call
        shape = ways[-1]
        weight = constant_values(call.args[1])
        assert weight is not None
        # (3, 3, inputs, outputs) as the product takes them: ((m + 2) ** 2, inputs, outputs).
        matrix = matrices(shape.tile)[1]
        both = np.einsum("ix,jy,xyco->ijco", matrix, matrix, weight.astype(np.float64)).astype(np.float32)
        tiles = builder.emit_te(
            partial(_input_transform, shape),
            call.args[0],
            primfunc_name_hint="winograd_input",
            primfunc_attrs={"op_pattern": OPAQUE},
        )
        product = builder.emit(op.matmul(tiles, relax.const(both.reshape(-1, *weight.shape[2:]))))
        return builder.call_te(
            partial(_output_transform, shape),
            product,
            primfunc_name_hint="winograd_output",
            primfunc_attrs={"op_pattern": TAKES_ELEMENTWISE},
        )

    return call_pass("TchubWinograd", rewrite)


def convolutions(mod: Any) -> set[ConvShape]:
    """Return the convolutions of a Relax module that `winograd` can compute, each way."""
    conv2d, shapes = Op.get("relax.nn.conv2d"), set[ConvShape]()

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and expr.op == conv2d:
            shapes.update(ConvShape.of_call(expr))

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return shapes


def _are_whole(weights: Any) -> bool:
    """Return whether weights are whole numbers, as a quantised network has them; some are looked at."""
    some = weights.reshape(-1)[:4096]
    return bool((some == np.round(some)).all())


@cache
def matrices(m: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the transforms of the output (m, m + 2), the weights (m + 2, 3) and the input (m + 2, m + 2)."""
    points = np.array(_POINTS[m])
    size = m + _KERNEL - 1
    output, weights, image = np.zeros((m, size)), np.zeros((size, _KERNEL)), np.zeros((size, size))
    for k, point in enumerate(points):
        others = np.delete(points, k)
        output[:, k] = point ** np.arange(m)
        weights[k] = point ** np.arange(_KERNEL) / np.prod(point - others)
        image[k, : size - 1] = np.poly(others)[::-1]
    output[-1, -1] = weights[-1, -1] = 1.0
    image[-1] = np.poly(points)[::-1]
    return output, weights, image


def _input_transform(shape: ConvShape, data: Any) -> Any:
    """Return tiles of an image, transformed: (products, tiles, channels)."""
    m, (top, left, _, _) = shape.tile, shape.padding
    size, (rows, columns) = m + 2, shape.tiles
    matrix = matrices(m)[2]

    def pixel(n: Any, h: Any, w: Any, x: Any, y: Any, c: Any) -> Any:
        row, column = h * m + x - top, w * m + y - left
        inside = te.all(row >= 0, row < shape.height, column >= 0, column < shape.width)
        return te.if_then_else(inside, data[n, row, column, c], 0.0)

    def first(n: Any, h: Any, w: Any, i: Any, y: Any, c: Any) -> Any:
        return _rows(matrix, i, lambda x: tile[n, h, w, x, y, c])

    def second(product: Any, p: Any, c: Any) -> Any:
        i, j = product // size, product % size
        n, h, w = p // (rows * columns), p // columns % rows, p % columns
        return _rows(matrix, j, lambda y: half[n, h, w, i, y, c])

    extents = extents_of(shape.batch, rows, columns, size, size, shape.inputs)
    tile: Any = te.compute(extents, pixel, name="winograd_tile", attrs={"schedule_rule": "None"})
    half: Any = te.compute(extents, first, name="winograd_rows", attrs={"schedule_rule": "None"})
    out = extents_of(size * size, shape.batch * rows * columns, shape.inputs)
    return te.compute(out, second, name="winograd_input", attrs={"schedule_rule": "tchub.winograd_input"})


def _output_transform(shape: ConvShape, data: Any) -> Any:
    """Return the image of transformed tiles."""
    m = shape.tile
    size, (height, width), (rows, columns) = m + 2, shape.extents, shape.tiles
    matrix = matrices(m)[0]

    def first(n: Any, h: Any, w: Any, x: Any, j: Any, c: Any) -> Any:
        p = (n * rows + h) * columns + w
        return _rows(matrix, x, lambda i: data[i * size + j, p, c])

    def second(n: Any, h: Any, w: Any, c: Any) -> Any:
        return _rows(matrix, w % m, lambda j: half[n, h // m, w // m, h % m, j, c])

    extents = extents_of(shape.batch, rows, columns, m, size, shape.outputs)
    half: Any = te.compute(extents, first, name="winograd_rows", attrs={"schedule_rule": "None"})
    out = extents_of(shape.batch, height, width, shape.outputs)
    return te.compute(out, second, name="winograd_output", attrs={"schedule_rule": "tchub.winograd_output"})


def _rows(matrix: np.ndarray[Any, Any], index: Any, term: Callable[[int], Any]) -> Any:
    """Return the product of one row of a constant matrix with terms; once loops are unrolled, the row is known."""
    result: Any = None
    for number, row in reversed(list(enumerate(matrix))):
        total: Any = None
        for k, factor in enumerate(row):
            if factor:
                scaled = term(k) if factor == 1.0 else term(k) * const(float(factor), "float32")
                total = scaled if total is None else total + scaled
        result = total if result is None else Select(index == number, total, result)
    return result


# Design spaces -----------------------------------------------------------------------------------------


def winograd_input(schedule: Any, block: Any) -> list[Any]:
    """Return the space of the input's transform: a tile of some channels is read, transformed and written."""
    half = schedule.get_producers(block)[0]
    tile = schedule.get_producers(half)[0]
    product, p, channels = schedule.get_loops(block)
    outer, inner = _split(schedule, channels)
    schedule.reorder(p, outer, product, inner)
    for one in (half, tile):
        schedule.compute_at(one, outer, preserve_unit_loops=True)
    _finish(schedule, p, [(block, 1), (half, 2), (tile, 2)])
    return [schedule]


def winograd_output(schedule: Any, block: Any) -> list[Any]:
    """Return the space of the output's transform and the elementwise operators that follow it, tile by tile.

    What follows with other axes or several results is left as it is, unscheduled.
    """
    half = schedule.get_producers(block)[0]
    m, chain = int(schedule.get(schedule.get_loops(half)[3]).extent), followers(schedule, block)
    if not chain or any(len(schedule.get_loops(one)) != 4 for one in chain):
        return [schedule]
    *inlined, last = chain
    for one in inlined:
        schedule.compute_inline(one)
    n, h, w, channels = schedule.get_loops(last)
    (rows, x), (columns, y) = (schedule.split(loop, [None, m]) for loop in (h, w))
    outer, inner = _split(schedule, channels)
    schedule.reorder(n, rows, columns, outer, x, y, inner)
    schedule.compute_at(half, outer, preserve_unit_loops=True)
    _finish(schedule, schedule.fuse(n, rows, columns), [(last, 2), (half, 2)])
    return [schedule]


def _split(schedule: Any, loop: Any) -> list[Any]:
    return schedule.split(loop, schedule.sample_perfect_tile(loop, n=2, max_innermost_factor=_LANES))


def _finish(schedule: Any, outermost: Any, blocks: list[tuple[Any, int]]) -> None:
    """Unroll the loops over a tile, so that the rows of the matrices are constants, and vectorise the channels."""
    schedule.parallel(outermost)
    for block, count in blocks:
        *_, inner = loops = schedule.get_loops(block)
        for loop in loops[-1 - count : -1]:
            schedule.unroll(loop)
        schedule.vectorize(inner)
    schedule.annotate(schedule.get_sblock("root"), "schedule_rule", "None")
