"""Products of a few rows with weights of 4 or 8 bits, each block of which has a scale.

A decoder's step, or a network of one sample, multiplies each weight once or a few times, so it takes as long as its
weights take to arrive from memory. Those that a tool quantised in blocks of a column are imported as float32; here they
become what they were, and multiply data that are rounded to 16 bits, each block by a scale of its own.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .quantised import split_weights
from .recurrence_kernel import LANES, MOST_CODE, PRODUCT_OF_PAIRS
from .relax_graph import (
    OPAQUE,
    READ_WEIGHTS,
    bound_to,
    call_pass,
    constant_address,
    constant_values,
    operator_name,
    static_shape,
)

op: Any = relax.op

_WORTH_BYTES = 1 << 17  # of weights in float32, from which on a part of them is worth what rounds the data
_MOST_ROWS = 4
_BLOCKS = (32, 128, 64, 16, 256)
"""Rows of a block, those that tools take most first."""
_MIDDLE = 8  # what a code of 4 bits that stands for 0 is
_LARGEST = (7, 6, 5, 4, _MIDDLE)  # magnitudes that the largest code of 4 bits may have; less is a part of one
_NEAR = 4 * float(np.finfo(np.float32).eps)
_SAMPLE = 8  # columns by which weights are ruled out that are no whole numbers
_LEAST_PEAK = 1e-30  # data of zeros have no scale of their own
_ramp: Any = tirx.Ramp
_broadcast: Any = tirx.Broadcast


def block_products(lanes: int) -> Any:
    """Return a pass that multiplies a few rows by weights of 4 or 8 bits where those are large.

    Args:
        lanes: numbers of a CPU's vector register.
    """
    split: dict[Any, Any] = {}

    def rewrite(builder: Any, call: Any) -> Any:
        if operator_name(call) != "matmul" or str(call.ty.dtype) != "float32":
            return call
        x, weights = call.args
        turned = bound_to(builder, weights, "permute_dims")
        weights = weights if turned is None else turned.args[0]
        values, shape = constant_values(weights), static_shape(x)
        if values is None or values.ndim != 2 or values.dtype != np.float32 or values.nbytes < _WORTH_BYTES:
            return call
        rows = prod(shape[:-1])
        if not 0 < rows <= _MOST_ROWS:
            return call
        values = values if turned is None else values.T
        width = _width_of(values.shape[1], rows)
        key = constant_address(weights), turned is None, width
        split[key] = split[key] if key in split else packed_weights(values, width)
        if split[key] is None:
            return call
        packed, scales = map(relax.const, split[key])
        x = builder.emit(op.reshape(x, [rows, shape[-1]]))
        names = {"primfunc_name_hint": "block_product", "primfunc_attrs": {"op_pattern": OPAQUE, READ_WEIGHTS: [1, 2]}}
        result = builder.emit(builder.call_te(block_product, x, packed, scales, lanes, **names))
        if static_shape(result)[1] != values.shape[1]:
            result = builder.emit(op.strided_slice(result, [1], [0], [values.shape[1]]))
        return op.reshape(result, [*shape[:-1], values.shape[1]])

    return call_pass("TchubBlockProducts", rewrite)


def _width_of(columns: int, rows: int) -> int:
    """Return how many columns a tile has: the least padding, then the most whose sums registers hold."""
    most = 4 if rows < 3 else 2
    return min((LANES * n for n in range(most, 0, -1)), key=lambda width: (-columns % width, -width))


def packed_weights(values: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return weights `[terms, columns]` as `block_product` reads them, or None where they are no such whole numbers.

    Returns:
        Groups in 32 bits each: `[tiles, terms / 8, width]` of codes of 4 bits, or `[tiles, terms / 4, width]` of 8
        bits; and scales `[tiles, blocks, width]`. Columns of zeros fill the last tile.
    """
    terms, columns = values.shape
    sizes = [size for size in (*_BLOCKS, terms) if terms % size == 0 and size % _BLOCKS[3] == 0]
    fitting = (size for size in sizes if all(_split(part) is not None for part in _samples(values, size)))
    size, both = next(((size, both) for size in fitting if (both := _split(_apart(values, size)))), (0, None))
    if both is None:
        return None
    whole, scales = (one.reshape(-1, terms // size, columns) for one in both)
    whole, scales = whole.transpose(1, 0, 2).reshape(terms, columns), scales[0]
    if size > max(_BLOCKS):  # whose sums could exceed 32 bits
        parts = max(part for part in _BLOCKS if terms % part == 0)
        scales = np.repeat(scales, size // parts, axis=0)
    padding = (0, -columns % width)
    if whole.min() >= -_MIDDLE and whole.max() < _MIDDLE:
        codes = np.pad((whole + _MIDDLE).astype(np.uint32), ((0, 0), padding), constant_values=_MIDDLE)
        shifts = [16 * (term % 2) + 4 * (term // 2) for term in range(8)]
    else:
        codes = np.pad(whole.astype("int8").view("uint8").astype(np.uint32), ((0, 0), padding))
        shifts = [0, 16, 8, 24]
    groups = np.bitwise_or.reduce([codes[at :: len(shifts)] << np.uint32(shift) for at, shift in enumerate(shifts)])
    groups, scales = groups.view("int32"), np.pad(scales.astype(np.float32), ((0, 0), padding))
    groups, scales = (one.reshape(len(one), -1, width).transpose(1, 0, 2) for one in (groups, scales))
    return np.ascontiguousarray(groups), np.ascontiguousarray(scales)


def _apart(values: np.ndarray, size: int) -> np.ndarray:
    """Return the blocks of weights as columns `[size, blocks * columns]`."""
    return values.reshape(-1, size, values.shape[1]).transpose(1, 0, 2).reshape(size, -1)


def _samples(values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    step = max(1, values.shape[1] // _SAMPLE)
    for column in range(0, values.shape[1], step):
        yield _apart(values[:, column : column + 1], size)


def _split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return whole numbers from -128 to 127 and the scale of each column, of 4 bits where that is possible; or None."""
    largest = np.abs(values).max(axis=0).astype(np.float64)
    if not np.isfinite(largest).all():
        return None
    scales, left = np.ones_like(largest), largest > 0
    for most in _LARGEST:
        tried = np.flatnonzero(left)
        if not tried.size:
            break
        whole = values[:, tried] / (largest[tried] / most)
        fits = tried[(np.abs(whole - np.rint(whole)) <= _NEAR * np.abs(whole)).all(axis=0)]
        scales[fits], left[fits] = largest[fits] / most, False
    whole, scales = np.rint(values / scales), scales.astype(np.float32)
    if left.any():
        both = split_weights(values)
        if both is None:
            return None
        whole, scales = both
    # A scale may be negative, so that the least number, which has no opposite, is the largest magnitude.
    most = np.abs(whole).max()
    signs = np.where(whole.max(axis=0) == (_MIDDLE if most <= _MIDDLE else 128), -1, 1)
    whole, scales = whole * signs, scales * signs.astype(np.float32)
    return (whole, scales) if whole.min() >= -128 and whole.max() < 128 else None


def block_product(x: Any, packed: Any, scales: Any, lanes: int) -> Any:
    """Return the tensor function of `x[rows, terms]` times weights of `packed_weights`, `[rows, tiles * width]`.

    Args:
        lanes: numbers of a CPU's vector register.
    """
    (rows, _), (tiles, _, width) = (list(map(int, one.shape)) for one in (x, scales))

    def body(inputs: Any, outputs: Any) -> Any:
        with IRBuilder() as builder, T.serial(0, 1):
            _BlockProduct(inputs, outputs[0], lanes).write()
        return builder.get()

    return te.extern([[rows, tiles * width]], [x, packed, scales], body, name="block_product", dtype=["float32"])


class _BlockProduct:
    """The kernel: data are rounded, and each tile of columns goes through its weights once, block by block."""

    def __init__(self, inputs: Any, result: Any, lanes: int) -> None:
        self.x, self.packed, self.scales = inputs
        self.result, self.lanes = result, lanes
        self.rows, terms = map(int, self.x.shape)
        self.tiles, self.blocks, self.width = map(int, self.scales.shape)
        self.size = terms // self.blocks
        self.terms = terms // int(self.packed.shape[1])  # of a group
        self.pairs = T.alloc_buffer([self.rows, terms // 2], "int32")
        self.units = T.alloc_buffer([self.rows, self.blocks], "float32")
        self.begins = T.alloc_buffer([self.rows, self.blocks], "int32")

    def write(self) -> None:
        """Write the loops."""
        with T.grid(self.rows, self.blocks) as (row, block):
            self._round(row, block)
        with T.parallel(0, self.tiles) as tile:
            cells = [(row, v) for row in range(self.rows) for v in range(self.width // LANES)]
            sums = {cell: T.alloc_buffer([LANES], "int32") for cell in cells}
            totals = {cell: T.alloc_buffer([LANES], "float32") for cell in cells}
            for total in totals.values():
                with T.vectorized(0, LANES) as lane:
                    T.buffer_store(total, tirx.const(0, "float32"), [lane])
            with T.serial(0, self.blocks) as block:
                for (row, _), one in sums.items():
                    with T.vectorized(0, LANES) as lane:
                        T.buffer_store(one, self.begins[row, block], [lane])
                with T.serial(0, self.size // self.terms) as step:
                    self._add(sums, tile, block * (self.size // self.terms) + step)
                for (row, v), total in totals.items():
                    with T.vectorized(0, LANES) as lane:
                        scale = self.scales[tile, block, v * LANES + lane] * self.units[row, block]
                        value = total[lane] + sums[row, v][lane].astype("float32") * scale
                        T.buffer_store(total, value, [lane])
            for (row, v), total in totals.items():
                with T.vectorized(0, LANES) as lane:
                    T.buffer_store(self.result, total[lane], [row, tile * self.width + v * LANES + lane])

    def _round(self, row: Any, block: Any) -> None:
        """Write a block of data as pairs of whole numbers, and what the middle codes add to each of its sums."""
        zero, most, least = (tirx.const(x, "float32") for x in (0, MOST_CODE, _LEAST_PEAK))
        peaks, totals, factor = (T.alloc_buffer([n], "float32") for n in (LANES, LANES, 1))
        whole = T.alloc_buffer([LANES // 2], "int32")
        with T.vectorized(0, LANES) as lane:
            T.buffer_store(peaks, zero, [lane])
            T.buffer_store(totals, zero, [lane])
        with T.serial(0, self.size // LANES) as v, T.vectorized(0, LANES) as lane:
            x = te.abs(self.x[row, block * self.size + v * LANES + lane])
            T.buffer_store(peaks, te.max(peaks[lane], x), [lane])
            T.buffer_store(totals, totals[lane] + x, [lane])
        peak, total = peaks[0], totals[0]
        for lane in range(1, LANES):
            peak, total = te.max(peak, peaks[lane]), total + totals[lane]
        # A maximum may lose what is no number; a sum is none then.
        T.buffer_store(self.units, tirx.Select(total >= zero, peak / most, total), [row, block])
        T.buffer_store(factor, most / te.max(peak, least), [0])
        with T.vectorized(0, LANES // 2) as lane:
            T.buffer_store(whole, tirx.const(0, "int32"), [lane])
        with T.serial(0, self.size // LANES) as v, T.vectorized(0, LANES // 2) as lane:
            pair = block * (self.size // 2) + v * (LANES // 2) + lane
            low, high = (tirx.nearbyint(self.x[row, 2 * pair + i] * factor[0]).astype("int32") for i in range(2))
            T.buffer_store(self.pairs, (low & 0xFFFF) | (high << 16), [row, pair])
            T.buffer_store(whole, whole[lane] + low + high, [lane])
        added = whole[0]
        for lane in range(1, LANES // 2):
            added = added + whole[lane]
        middle = added * -_MIDDLE if self.terms == 8 else tirx.const(0, "int32")
        T.buffer_store(self.begins, middle, [row, block])

    def _add(self, sums: dict[tuple[int, int], Any], tile: Any, at: Any) -> None:
        """Add the products of a group's terms to the sums."""
        lanes, halves = self.lanes, f"int16x{2 * self.lanes}"
        data = [
            [_broadcast(self.pairs[row, at * (self.terms // 2) + i], lanes) for i in range(self.terms // 2)]
            for row in range(self.rows)
        ]
        for v in range(self.width // LANES):
            for begin in range(0, LANES, lanes):
                own = _ramp(begin, 1, lanes)
                groups = self.packed[tile, at, _ramp(v * LANES + begin, 1, lanes)]
                for pair, weights in enumerate(self._weights(groups)):
                    for row in range(self.rows):
                        state = tirx.reinterpret(halves, data[row][pair])
                        both = tirx.call_llvm_pure_intrin(f"int32x{lanes}", PRODUCT_OF_PAIRS[lanes], state, weights)
                        T.buffer_store(sums[row, v], sums[row, v][own] + both, [own])

    def _weights(self, groups: Any) -> list[Any]:
        """Return the weights of groups, each a vector of pairs of 16 bits."""
        lanes, halves = self.lanes, f"int16x{2 * self.lanes}"
        if self.terms == 8:
            mask = _broadcast(tirx.const(0x000F000F, "int32"), lanes)
            shifted = [groups >> _broadcast(tirx.const(4 * i, "int32"), lanes) if i else groups for i in range(4)]
            return [tirx.reinterpret(halves, one & mask) for one in shifted]
        both, eight = tirx.reinterpret(halves, groups), _broadcast(tirx.const(8, "int16"), 2 * lanes)
        return [(both << eight) >> eight, both >> eight]
