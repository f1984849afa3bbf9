"""Matrix products and convolutions as products of tiles, on tile registers, as Xeons have them since 2023 (AMX).

A tile register holds 16 rows of 64 bytes; one instruction multiplies two of them into a third, of bfloat16 sixteen
times as many multiply-adds in a cycle as the vector registers do in float32, of whole numbers of 8 bits 32 times. A
product is computed 32 rows by 32 columns at a time, which four registers add up in 32 bits while two pairs of others
read the factors. A convolution is a sum of such products, one for each pixel of its kernel: images are stored with
their padding, pixel by pixel, so that the pixels that a kernel's pixel meets are rows that follow each other; those at
the end of a row meet the next row, and what is computed for them is left out. Of a convolution with a stride, each of
its phases is an image of its own. Of whole numbers, other CPUs compute tiles of fewer rows by vector registers (VNNI of
x86, SDOT of Arm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.tirx import IntImm, Select, const, reinterpret

from ....zoo.tile_instructions import BFLOAT16, TILES, Factors
from ...device.statements import flat_index
from .elementwise import blocks_in
from .relax_graph import (
    TAKES_ELEMENTWISE,
    call_pass,
    constant_address,
    constant_values,
    extents_of,
    static_shape,
)  # fmt: skip
from .tile_shapes import TILE, TileShape, shape_of, shape_of_rows, whole

TYPE = BFLOAT16.weights
PRODUCT, ATTENTION, VECTOR_PRODUCT = "tchub.tile_product", "tchub.tile_attention", "tchub.vector_product_"
OF_DATA = "_of_data"  # ends the names of rules for products without weights
LANES = "tchub.lanes"
"""The attribute that says how many numbers of a tile's row follow each other in what it is copied from."""


def tile_products(*, halves: bool, of_bytes: Sequence[Factors] = ()) -> Any:
    """Return a pass that computes products and convolutions with constant weights as products of tiles.

    What comes in and goes out keeps its type. Where the rows of the products are the result's pixels, the result is a
    matrix, so that what follows can be computed for a tile at a time.

    Args:
        halves: compute those of float32, in bfloat16.
        of_bytes: the factors of those of whole numbers, see `tile_instructions.TILES`; without, there are none.
    """

    constants: dict[Any, Any] = {}  # of weights that several products may share

    def rewrite(builder: Any, call: Any) -> Any:
        shape = shape_of(call)
        if shape is None or not (halves if shape.factors is BFLOAT16 else of_bytes):
            return call
        if shape.factors is not BFLOAT16:
            shape = replace(shape, factors=of_bytes[TILES.index(shape.factors)]).fitted
        rows, outputs, parts = shape.image[0] * prod(shape.extents), shape.outputs, prod(shape.kernel)
        window = None
        if shape.is_few and not shape.by_group:  # each row of the kernel, or a few of them, is a part, in whole tiles
            window, parts, (wide, several) = shape, shape.kernel[0], shape.window
            shape = shape_of_rows(rows, whole(parts, several) * wide, outputs, shape.factors).fitted
        key = constant_address(call.args[1]), static_shape(call.args[1])
        if key not in constants:
            weights: Any = constant_values(call.args[1])
            factors, by_part = shape.factors, weights.reshape(parts, -1, outputs)
            if window:
                wide, several = window.window
                more = whole(parts, several) - parts, wide - by_part.shape[1], 0
                by_part = np.pad(by_part, [(0, n) for n in more]).reshape(-1, wide * several, outputs)
            tiles = packed(by_part, factors)
            tiles = tiles.reshape(-1, prod(shape.kernel), shape.depth // factors.group, *tiles.shape[3:])
            totals = weights.reshape(-1, outputs).sum(axis=0) if factors.lanes else None  # data may have an offset
            constants[key] = relax.const(tiles, factors.weights), totals
        tiles, totals = constants[key]
        offset = shape.factors.offset
        shift = [relax.const((totals * offset).astype("int32"))] if totals is not None and offset else []
        by_rows = shape.kernel == (1, 1)
        product = builder.call_te(
            partial(_product, shape, window, (rows, outputs) if by_rows else static_shape(call)),
            call.args[0],
            tiles,
            *shift,
            primfunc_name_hint="tile_product",
            primfunc_attrs={"op_pattern": TAKES_ELEMENTWISE},
        )
        return relax.op.reshape(builder.emit(product), call.ty.shape) if by_rows else product

    return call_pass("TchubTileProducts", rewrite)


def is_of_tiles(func: Any, *, halves: bool = False) -> bool:
    """Return whether a tensor function has a product of tiles; `halves`: one of bfloat16."""
    of_tiles = [block for block in blocks_in(func) if rule_of_tiles(block)]
    return any(not halves or str(block.writes[0].source.dtype) == BFLOAT16.sums for block in of_tiles)


def gain_of_tiles(func: Any) -> int:
    """Return how many multiply-adds of a function's products take the time of one in float32 by vector registers."""
    rules = {rule for block in blocks_in(func) if (rule := rule_of_tiles(block))}
    if not rules:
        return 1
    if any(rule.startswith(VECTOR_PRODUCT) for rule in rules):
        return 4
    return 16 if is_of_tiles(func, halves=True) else 32


def rule_of_tiles(block: Any) -> str:
    """Return the rule by which a block's function is scheduled, where that has products of tiles; else nothing."""
    rule = str(block.annotations.get("schedule_rule", ""))
    return rule if rule.startswith((PRODUCT, ATTENTION, VECTOR_PRODUCT)) else ""


def packed(weights: np.ndarray, factors: Factors = BFLOAT16) -> np.ndarray:
    """Return weights (pixels, inputs, outputs) as tiles read them: (outputs / 32, pixels, inputs / group, 32, group).

    Inputs and outputs are filled up with zeros to whole tiles. For vector registers a group is one number.
    """
    import ml_dtypes  # noqa: F401 (NumPy then knows bfloat16 by its name)

    pixels, inputs, outputs = weights.shape
    depth = whole(inputs, factors.terms)
    filled = np.pad(weights, [(0, 0), (0, depth - inputs), (0, whole(outputs) - outputs)])
    dtype = "int8" if factors.lanes else factors.weights
    groups = filled.astype(dtype).reshape(pixels, depth // factors.group, factors.group, -1, TILE)
    tiles = np.ascontiguousarray(groups.transpose(3, 0, 1, 4, 2))
    return tiles.view(factors.weights)[..., 0] if factors.lanes else tiles


def _product(
    shape: TileShape, window: TileShape | None, result: Sequence[int], data: Any, weights: Any, shift: Any = None
) -> Any:
    """Return the tensor of a result's extents.

    Args:
        window: the convolution of an image of few channels that the product is of; None for another one.
        data: an image, or the rows of a product, however many axes these have.
        shift: is subtracted from each column; None for nothing.
    """
    none = {"schedule_rule": "None"}
    batch, height, width, channels = shape.image
    (rows, columns), (top, left) = shape.stored, shape.padding
    factors = shape.factors
    # Of the last rows the kernel meets pixels that no image has.
    beyond = max(shape.offset(i, j)[1] for i in range(shape.kernel[0]) for j in range(shape.kernel[1]))

    def pixel(phase: Any, part: Any, p: Any, lane: Any) -> Any:
        c = part * factors.terms + lane
        if windows is not None:
            return windows(part, p, lane)
        n, i, j = p // (rows * columns), p // columns % rows, p % columns
        i = i * shape.strides[0] + phase // shape.phases[1] - top
        j = j * shape.strides[1] + phase % shape.phases[1] - left
        index = (n, i, j) if is_image else _unflattened(p, data.shape[:-1])
        inside = te.all(p < batch * rows * columns, i >= 0, i < height, j >= 0, j < width, c < channels)
        return te.if_then_else(inside, stored_bits(factors, data(*index, c)), const(factors.offset, factors.data))

    def term(*index: Any) -> Any:
        *image, m, n = index
        phase, offset = shape.offset(i, j)
        if images > 1:
            offset = offset + shape.first_pixel(*image)
        group = factors.group
        index = n // TILE, i * shape.kernel[1] + j, k // group, n % TILE
        if factors.lanes:
            weight = (weights[index] >> (k % group * 8).astype("uint32")).astype("int8").astype(factors.sums)
        else:
            weight = weights[(*index, k % group)].astype(factors.sums)
        factor = data[m, k] if direct else tiles[phase, k // factors.terms, m + offset, k % factors.terms]
        wide = widened(factor) if factors is BFLOAT16 else factor.astype(factors.sums)
        return te.sum(wide * weight, axis=[i, j, k])

    def cut(*index: Any) -> Any:
        *pixel, channel = index
        # TVM finds the rows of an image that is one row, or one column, where nothing stands for the other axis.
        pixel = [one if extent > 1 else 0 for one, extent in zip(pixel, result, strict=False)]
        extents = result[:-1] if len(result) == 2 else (batch, rows, columns)
        row = [flat_index(pixel, extents)]
        if images > 1:
            row = [flat_index(pixel[:2], (batch, shape.extents[0])), pixel[2]]
        elif factors.lanes:
            row.insert(0, 0)
        return products[(*row, channel)] if shift is None else products[(*row, channel)] - shift[channel]

    lies = tuple(map(int, data.shape))
    is_image, by_rows = lies == shape.image, len(result) == 2
    windows = _windows(window, data) if window else None
    i, j, k = (summed(n, name) for n, name in zip((*shape.kernel, shape.depth), "ijk", strict=True))
    images, each = shape.grid
    # Vectors read rows where they lie; tile registers do, too, see `read_directly`.
    direct = factors.lanes and by_rows and not (window or factors.offset) and lies == (each, shape.depth)
    pixels = (shape.first_pixel(images - 1) if images > 1 else 0) + each + beyond
    extents = prod(shape.phases), shape.depth // factors.terms, pixels, factors.terms
    attrs = none | ({LANES: window.window[0]} if window and window.window[1] > 1 else {})
    tiles: Any = te.compute(extents_of(*extents), pixel, name="stored", attrs=attrs)
    rule = {"schedule_rule": f"{VECTOR_PRODUCT}{factors.size}" if factors.lanes else PRODUCT}
    axes = [*([images] if factors.lanes else []), each, whole(shape.outputs)]
    products: Any = te.compute(extents_of(*axes), term, name="products", attrs=rule)
    return te.compute(extents_of(*result), cut, name="tile_product", attrs=none)


def _windows(shape: TileShape, data: Any) -> Any:
    """Return what gives the numbers of an image that a convolution's pixel reads: a row of its kernel after the other.

    Of few channels, a row of the kernel meets numbers that follow each other in the padded image.
    """
    (batch, height, width, channels), kernel = shape.image, shape.kernel
    (top, left), (below, across) = shape.padding, shape.extents
    terms, (wide, several) = shape.factors.terms, shape.window
    parts = -(-wide // terms)  # of a row of the kernel
    rows = (below - 1) * shape.strides[0] + (whole(kernel[0], several) - 1) * shape.dilation[0] + 1
    columns = (across - 1) * shape.strides[1] + -(-wide // channels)

    def pixel(n: Any, i: Any, j: Any, c: Any) -> Any:
        inside = te.all(i >= top, i < top + height, j >= left, j < left + width)
        return te.if_then_else(inside, stored_bits(shape.factors, data(n, i - top, j - left, c)), nothing)

    none, nothing = {"schedule_rule": "None"}, const(shape.factors.offset, shape.factors.data)
    padded: Any = te.compute(extents_of(batch, rows, columns, channels), pixel, name="padded", attrs=none)

    def window(part: Any, p: Any, lane: Any) -> Any:
        n, y, x = p // (below * across), p // across % below, p % across
        row, number = part // parts * several + lane // wide, part % parts * terms + lane % wide
        term = x * shape.strides[1] * channels + number
        value = padded[n, y * shape.strides[0] + row * shape.dilation[0], term // channels, term % channels]
        # Behind the row of the kernel come other pixels: their weights are 0, which a NaN times 0 is not.
        value = Select(te.all(number < kernel[1] * channels, row < kernel[0]), value, nothing)
        return te.if_then_else(p < batch * below * across, value, nothing)

    return window


def summed(extent: int, name: str) -> Any:
    return te.reduce_axis((0, IntImm("int64", extent)), name=name)


def _unflattened(number: Any, extents: Sequence[Any]) -> list[Any]:
    """Return the indices of the row of some number."""
    index: list[Any] = []
    for extent in reversed(extents):
        index.insert(0, number % extent)
        number = number // extent
    return index


def stored_bits(factors: Factors, x: Any) -> Any:
    """Return a number of the data as tiles have it: of float32 the bits of the nearest bfloat16."""
    if factors.offset:  # 128 or -128, which turns the bit of the sign
        return reinterpret(factors.data, x) ^ const(factors.offset, factors.data)
    return rounded(x) if factors is BFLOAT16 else x


def rounded(x: Any) -> Any:
    """Return the bits of the bfloat16 nearest to a float32: buffers of bfloat16 are of float32 once TVM lowers them."""
    bits = reinterpret("uint32", x)
    even = bits + (bits >> const(16, "uint32") & const(1, "uint32")) + const(0x7FFF, "uint32")
    return (even >> const(16, "uint32")).astype("uint16")


def widened(bits: Any) -> Any:
    """Return the float32 of a bfloat16's bits."""
    return reinterpret("float32", bits.astype("uint32") << const(16, "uint32"))
