"""What tiles a matrix product or a convolution has, and what fills them up.

A convolution is a sum of products, one for each pixel of its kernel. How many rows and terms are computed together, and
whether the rows of an image are computed apart, decide how much of the tiles is nothing that the product has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ....zoo.tile_instructions import BFLOAT16, FACTORS, GROUPS, ROWS, Factors
from .relax_graph import constant_address, is_channels_last, operator_name, static_shape

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
        shape = shape_of_rows(prod(data[:-1]), data[-1], weights[-1], factors)
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


def shape_of_rows(rows: int, terms: int, outputs: int, factors: Factors) -> TileShape:
    """Return the shape of a product of rows by terms."""
    return TileShape((1, 1, rows, terms), (1, 1), (1, 1), (1, 1), (0, 0), (1, rows), outputs, factors)
