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
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.tirx import IntImm, Select, const, reinterpret

from ....zoo.tile_instructions import BFLOAT16, FACTORS, GROUPS, ROWS, TILES, Factors
from ...device.statements import flat_index
from .elementwise import blocks_in
from .relax_graph import (
    TAKES_ELEMENTWISE,
    call_pass,
    constant_address,
    constant_values,
    extents_of,
    is_channels_last,
    operator_name,
    static_shape,
)  # fmt: skip

TYPE = BFLOAT16.weights
PRODUCT, ATTENTION, VECTOR_PRODUCT = "tchub.tile_product", "tchub.tile_attention", "tchub.vector_product_"
OF_DATA = "_of_data"  # ends the names of rules for products without weights
LANES = "tchub.lanes"
"""The attribute that says how many numbers of a tile's row follow each other in what it is copied from."""
# Rows and columns that are computed together, and terms of bfloat16 that one instruction adds.
TILE = 32
# Rows and terms below these leave most of a tile empty.
LEAST_ROWS, LEAST_DEPTH = 16, 16
# Times as many multiply-adds as a product has that vectors do of 8 bits in the time of float32: four, less what is lost
# to numbers that are stored again as tiles.
LEAST_GAIN = 3.5
_LEAST_WINDOW = 16  # terms of a row of the kernel, with what fills it up


@dataclass(frozen=True)
class TileShape:
    """A product, or a convolution, as products of tiles.

    Attributes:
        image: batch, height, width and channels; of a product 1, 1, rows and terms.
        kernel, strides, dilation: rows and columns.
        padding: rows at the top, columns at the left.
        extents: height and width of the result.
        outputs: its channels.
        factors: their types.
    """

    image: tuple[int, int, int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    extents: tuple[int, int]
    outputs: int
    factors: Factors = BFLOAT16

    @property
    def phases(self) -> tuple[int, int]:
        """Return the images, in rows and columns, that hold each other pixel and so on; a kernel of 1 meets one."""
        rows, columns = (
            min(s, d * (k - 1) + 1) for s, d, k in zip(self.strides, self.dilation, self.kernel, strict=True)
        )
        return rows, columns

    @property
    def stored(self) -> tuple[int, int]:
        """Return the rows and columns of a stored image: those of the result, and those that its last pixels meet."""
        rows, columns = (
            n + d * (k - 1) // s
            for n, d, k, s in zip(self.extents, self.dilation, self.kernel, self.strides, strict=True)
        )
        return rows, columns

    @property
    def depth(self) -> int:
        """Return the channels that are stored."""
        return whole(self.image[3], self.factors.terms)

    @property
    def rows(self) -> int:
        """Return the rows of the products."""
        (height, width), (rows, columns) = self.extents, self.stored
        return whole(((self.image[0] - 1) * rows + height - 1) * columns + width, self.factors.rows)

    @property
    def grid(self) -> tuple[int, int]:
        """Return the rows of images that are computed apart, and the rows of the products of each.

        All pixels may be one such row, with those that are left out at the end of each row of an image. Vectors take
        the rows of the images apart where that is less.
        """
        flat = 1, self.rows
        if not self.factors.lanes or self.kernel == (1, 1):
            return flat
        apart = self.image[0] * self.extents[0], whole(self.extents[1], self.factors.rows)
        return min(flat, apart, key=prod)

    @property
    def fitted(self) -> TileShape:
        """Return it with as many rows and groups computed together as leave the least to fill up."""
        lanes = self.factors.lanes
        sizes = [(rows, groups) for groups in GROUPS.get(lanes, ()) for rows in ROWS[lanes]]
        shapes = self, *(replace(self, factors=replace(self.factors, rows=n, groups=groups)) for n, groups in sizes)
        return min(shapes, key=lambda one: one.terms * prod(one.grid))

    @property
    def terms(self) -> int:
        """Return the terms of a sum, with what fills them up."""
        if self.is_few and not self.by_group:
            width, several = self.window
            return whole(self.kernel[0], several) * width
        return prod(self.kernel) * self.depth

    @property
    def is_few(self) -> bool:
        """Return whether it is of few channels, so that rows of the kernel are parts of the product's terms."""
        return self.image[3] < LEAST_DEPTH

    @property
    def by_group(self) -> bool:
        """Return whether it is of few channels, of which vectors of x86 read one word at a time."""
        return self.is_few and self.factors.lanes > 4

    @property
    def window(self) -> tuple[int, int]:
        """Return the terms that a row of the kernel takes, and the rows of a part, of an image of few channels."""
        wide, terms = self.kernel[1] * self.image[3], self.factors.terms
        width = max(1 << (wide - 1).bit_length(), _LEAST_WINDOW)
        return (width, terms // width) if width < terms else (whole(wide, terms), 1)

    @property
    def is_worth_tiles(self) -> bool:
        """Return whether whole tiles take less than float32 does, of what the product really has; those of AMX do."""
        if not self.factors.lanes:
            return True
        rows, channels = self.image[0] * prod(self.extents), self.image[3]
        padded = self.terms * whole(rows, self.factors.rows) * whole(self.outputs)
        return padded < LEAST_GAIN * rows * prod(self.kernel) * channels * self.outputs

    def offset(self, i: Any, j: Any) -> tuple[Any, Any]:
        """Return the phase, and the pixels from the result's, of the pixels that the kernel's pixel (i, j) meets."""
        (di, dj), (si, sj) = self.dilation, self.strides
        return (i * di % si) * self.phases[1] + j * dj % sj, (i * di // si) * self.stored[1] + j * dj // sj

    def first_pixel(self, row: Any) -> Any:
        """Return the first pixel of a row of the images, among all that are stored."""
        height, (rows, columns) = self.extents[0], self.stored
        return (row // height * rows + row % height) * columns


def whole(extent: int, part: int = TILE) -> int:
    """Return an extent that whole tiles have."""
    return -(-extent // part) * part


def shape_of(call: Any) -> TileShape | None:
    """Return the shape of a product or a convolution with constant weights; None for any other call.

    It is of float32, which is rounded, or of whole numbers of 8 bits.
    """
    name = operator_name(call)
    types = [str(one.ty.dtype) for one in (*call.args[:2], call)] if name in ("matmul", "nn.conv2d") else []
    factors = BFLOAT16 if types == ["float32"] * 3 else factors_of(*types[:2]) if types[2:] == ["int32"] else None
    if factors is None:
        return None
    data, weights, result = static_shape(call.args[0]), static_shape(call.args[1]), static_shape(call)
    if not data or not result or constant_address(call.args[1]) is None:
        return None
    if name == "matmul":
        if len(weights) != 2 or len(data) < 2:
            return None
        shape = _of_rows(prod(data[:-1]), data[-1], weights[-1], factors)
    else:
        attrs = call.attrs
        if not is_channels_last(call) or int(attrs.groups) != 1:
            return None
        pairs = [tuple(map(int, pair)) for pair in (weights[:2], attrs.strides, attrs.dilation, attrs.padding[:2])]
        kernel, strides, dilation, padding = pairs
        shape = TileShape(data, kernel, strides, dilation, padding, result[1:3], weights[3], factors)  # type: ignore[arg-type]
    if shape is None or shape.image[0] * prod(shape.extents) < LEAST_ROWS or shape.outputs < LEAST_DEPTH:
        return None
    if shape.kernel == (1, 1) and name != "matmul" and any(map(int, call.attrs.padding)):
        return None  # rows beyond the data would be results
    return (
        None if shape.is_few and (prod(shape.kernel) * shape.image[3] < LEAST_DEPTH or shape.dilation[1] > 1) else shape
    )


def factors_of(data: str, weights: str) -> Factors | None:
    """Return the factors of which some data, as they are stored, and weights are."""
    return next((one for one in FACTORS if (one.data, one.weights) == (data, weights)), None)


def _of_rows(rows: int, terms: int, outputs: int, factors: Factors) -> TileShape:
    return TileShape((1, 1, rows, terms), (1, 1), (1, 1), (1, 1), (0, 0), (1, rows), outputs, factors)


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
            shape = _of_rows(rows, whole(parts, several) * wide, outputs, shape.factors).fitted
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
