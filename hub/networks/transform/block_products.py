"""Products of a few rows with weights of 4 or 8 bits, each block of which has a scale.

A decoder's step, or a network of one sample, multiplies each weight once or a few times, so it takes as long as its
weights take to arrive from memory. Those that a tool quantised in blocks of a column are imported as float32; here they
become what they were. The data of a block become whole numbers of 30 bits, by a power of two, which are multiplied as
two halves of 16 bits: what that leaves out is as little as what float32 does.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .recurrence_kernel import LANES, PRODUCT_OF_PAIRS, peak_and_total
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
_BLOCKS = (256, 128, 64, 32, 16)
"""Rows of a block, where a column is not one block."""
_MIDDLE = 8  # what a code of 4 bits that stands for 0 is
_MOST_CODE, _LEAST_CODE = 128, 4  # magnitudes that the largest code of weights may have
_NEAR = 4 * float(np.finfo(np.float32).eps)
_SAMPLES, _FIRST = 8, 16  # columns by which weights are ruled out that are no whole numbers, and rows of a block
_AT_ONCE = 1 << 22  # weights that are split at once
_AHEAD = 16  # groups that are asked for before they are read
_REQUEST = (tirx.const(0, "int32"), tirx.const(3, "int32"), tirx.const(1, "int32"))  # to read, into all caches, data
_HALF = 15  # bits of the lower half of data
# The exponents of float32, as they are stored, that the largest number of a block and 2**28 have; data below the least
# one lose bits.
_LEAST_EXPONENT, _OF_DATA = 30, 127 + 28
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
        width = _width_of(values.shape[1], rows, lanes)
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


def _width_of(columns: int, rows: int, lanes: int) -> int:
    """Return how many columns a tile has: the least padding, then the most whose sums registers hold."""
    most = (4 if rows < 3 else 2) * lanes // LANES
    return min((LANES * n for n in range(max(1, most), 0, -1)), key=lambda width: (-columns % width, -width))


def packed_weights(values: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return weights `[terms, columns]` as `block_product` reads them, or None where they are no such whole numbers.

    Returns:
        Groups in 32 bits each: `[tiles, terms / 8, width]` of codes of 4 bits, or `[tiles, terms / 4, width]` of 8
        bits; and scales `[tiles, blocks, width]`. Columns of zeros fill the last tile.
    """
    terms, columns = values.shape
    if terms % _BLOCKS[-1] or (block := _block_size(values)) is None:
        return None
    size, likely = block
    whole = np.empty((terms, columns), "int8")
    scales = np.empty((terms // size, columns), np.float32)
    step = max(1, _AT_ONCE // terms)
    for begin in range(0, columns, step):
        both = _split(_apart(values[:, begin : begin + step], size), likely)
        if both is None:
            return None
        own, by = (one.reshape(one.shape[0] if one.ndim > 1 else 1, terms // size, -1) for one in both)
        whole[:, begin : begin + step] = own.transpose(1, 0, 2).reshape(terms, -1)
        scales[:, begin : begin + step] = by[0]
    if max(int(whole.max()), -int(whole.min())) < _LEAST_CODE or 2 * np.count_nonzero(whole) < whole.size:
        return None  # zeros and ones that choose or add up, as of a permutation
    if size > _BLOCKS[0]:  # whose sums could exceed 32 bits
        scales = np.repeat(scales, size // max(part for part in _BLOCKS if terms % part == 0), axis=0)
    padding = (0, -columns % width)
    if whole.min() >= -_MIDDLE and whole.max() < _MIDDLE:
        codes = np.pad((whole + _MIDDLE).astype(np.uint32), ((0, 0), padding), constant_values=_MIDDLE)
        shifts = [16 * (term % 2) + 4 * (term // 2) for term in range(8)]
    else:
        codes = np.pad(whole.view("uint8").astype(np.uint32), ((0, 0), padding))
        shifts = [0, 16, 8, 24]
    groups = codes[:: len(shifts)].copy()
    for at, shift in enumerate(shifts[1:], start=1):
        groups |= codes[at :: len(shifts)] << np.uint32(shift)
    packed = (groups.view("int32"), np.pad(scales, ((0, 0), padding)))
    tiled = [np.ascontiguousarray(one.reshape(len(one), -1, width).transpose(1, 0, 2)) for one in packed]
    return tiled[0], tiled[1]


def _block_size(values: np.ndarray) -> tuple[int, list[int]] | None:
    """Return the largest block of whole numbers that some columns have, and the largest codes there; or None."""
    terms = len(values)
    columns = np.flatnonzero(values[: max(_BLOCKS)].any(axis=0))[: 64 * _SAMPLES]
    if not columns.size:
        return None
    sample = values[:, columns[:: -(-columns.size // _SAMPLES)]]
    for size in (terms, *(size for size in _BLOCKS if size < terms and terms % size == 0)):
        likely = set[int]()
        if _split(_apart(sample, size), range(1, _MOST_CODE + 1), likely) is not None:
            return size, sorted(likely)
    return None


def _apart(values: np.ndarray, size: int) -> np.ndarray:
    """Return the blocks of weights as columns `[size, blocks * columns]`."""
    return values.reshape(-1, size, values.shape[1]).transpose(1, 0, 2).reshape(size, -1)


def _split(
    values: np.ndarray, magnitudes: Sequence[int], known: set[int] | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return whole numbers from -128 to 127, in int8, and the scale of each column; or None.

    Args:
        magnitudes: of the largest whole number of a column, those that are tried first.
        known: gets those that fit.
    """
    largest = np.abs(values).max(axis=0).astype(np.float64)
    if not np.isfinite(largest).all():
        return None
    whole, scales, left = np.zeros(values.shape, "int16"), np.ones_like(largest), np.flatnonzero(largest > 0)
    for most in dict.fromkeys((*magnitudes, *range(1, _MOST_CODE + 1))):
        tried = left
        for rows in (slice(_FIRST), slice(None)):
            part = values[rows][:, tried] / (largest[tried] / most)
            fits = (np.abs(part - np.rint(part)) <= _NEAR * np.abs(part)).all(axis=0)
            tried, part = tried[fits], part[:, fits]
        if tried.size:
            whole[:, tried], scales[tried] = np.rint(part), largest[tried] / most
            left = np.setdiff1d(left, tried, assume_unique=True)
            if known is not None:
                known.add(most)
        if not left.size:
            break
    if left.size:
        return None
    common = np.maximum(np.gcd.reduce(whole, axis=0), 1)
    whole, scales = whole // common, scales * common
    # A scale may be negative, so that the least number, which has no opposite, is the largest magnitude.
    ends = whole.max(axis=0), -whole.min(axis=0)
    signs = np.where(ends[0] > ends[1], -1, 1)
    whole, scales = whole * signs, (scales * signs).astype(np.float32)
    return (whole.astype("int8"), scales) if whole.max(initial=0) < _MOST_CODE else None


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
    """The kernel: data become whole numbers, and each tile of columns goes through its weights once, block by block."""

    def __init__(self, inputs: Any, result: Any, lanes: int) -> None:
        self.x, self.packed, self.scales = inputs
        self.result, self.lanes = result, lanes
        self.rows, terms = map(int, self.x.shape)
        self.tiles, self.blocks, self.width = map(int, self.scales.shape)
        self.size = terms // self.blocks
        self.terms = terms // int(self.packed.shape[1])  # of a group
        # Both halves of the data in pairs, what the middle codes add to their sums, and what 1 stands for.
        self.pairs = [T.alloc_buffer([self.rows, terms // 2], "int32") for _ in range(2)]
        self.begins = [T.alloc_buffer([self.rows, self.blocks], "int32") for _ in range(2)]
        self.units = T.alloc_buffer([self.rows, self.blocks], "float32")

    def write(self) -> None:
        """Write the loops."""
        with T.grid(self.rows, self.blocks) as (row, block):
            self._round(row, block)
        with T.parallel(0, self.tiles) as tile:
            cells = [(row, v) for row in range(self.rows) for v in range(self.width // LANES)]
            sums = {(*cell, half): T.alloc_buffer([LANES], "int32") for cell in cells for half in range(2)}
            totals = {cell: T.alloc_buffer([LANES], "float32") for cell in cells}
            for total in totals.values():
                with T.vectorized(0, LANES) as lane:
                    T.buffer_store(total, tirx.const(0, "float32"), [lane])
            with T.serial(0, self.blocks) as block:
                for (row, _, half), one in sums.items():
                    with T.vectorized(0, LANES) as lane:
                        T.buffer_store(one, self.begins[half][row, block], [lane])
                with T.serial(0, self.size // self.terms) as step:
                    self._ask(tile, block * (self.size // self.terms) + step)
                    self._add(sums, tile, block * (self.size // self.terms) + step)
                for (row, v), total in totals.items():
                    with T.vectorized(0, LANES) as lane:
                        low, high = (sums[row, v, half][lane].astype("float32") for half in range(2))
                        value = (high * tirx.const(1 << _HALF, "float32") + low) * self.units[row, block]
                        value = total[lane] + value * self.scales[tile, block, v * LANES + lane]
                        T.buffer_store(total, value, [lane])
            for (row, v), total in totals.items():
                with T.vectorized(0, LANES) as lane:
                    T.buffer_store(self.result, total[lane], [row, tile * self.width + v * LANES + lane])

    def _ask(self, tile: Any, at: Any) -> None:
        """Ask for the groups of some steps later, also of the next tile, which follow: else a core waits for each."""
        for v in range(self.width // LANES):
            address = tirx.address_of(self.packed[tile, at + _AHEAD, v * LANES])
            T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, *_REQUEST))

    def _round(self, row: Any, block: Any) -> None:
        """Write a block of data as whole numbers, and what the middle codes add to each of its sums."""
        zero, infinity = tirx.const(0, "float32"), tirx.infinity("float32")
        factor = T.alloc_buffer([1], "float32")
        added = [T.alloc_buffer([LANES // 2], "int32") for _ in range(2)]
        begin = block * self.size
        peak, total = peak_and_total(lambda k: self.x[row, begin + k], self.size // LANES)
        bits: Any = tirx.reinterpret("int32", peak)
        exponent: Any = te.max((bits >> 23) & 255, _LEAST_EXPONENT)
        power: Any = lambda e: tirx.reinterpret("float32", e << 23)  # noqa: E731
        T.buffer_store(factor, power(127 + _OF_DATA - exponent), [0])
        unit = tirx.Select(peak < infinity, power(exponent + 127 - _OF_DATA), peak)
        T.buffer_store(self.units, tirx.Select(total >= zero, unit, total), [row, block])
        for one in added:
            with T.vectorized(0, LANES // 2) as lane:
                T.buffer_store(one, tirx.const(0, "int32"), [lane])
        with T.serial(0, self.size // LANES) as v, T.vectorized(0, LANES // 2) as lane:
            pair = block * (self.size // 2) + v * (LANES // 2) + lane
            both = [tirx.nearbyint(self.x[row, 2 * pair + i] * factor[0]).astype("int32") for i in range(2)]
            high = [(one + (1 << (_HALF - 1))) >> _HALF for one in both]
            low = [one - (half << _HALF) for one, half in zip(both, high, strict=True)]
            for half, (first, second) in enumerate((low, high)):
                T.buffer_store(self.pairs[half], (first & 0xFFFF) | (second << 16), [row, pair])
                T.buffer_store(added[half], added[half][lane] + first + second, [lane])
        for half, one in enumerate(added):
            total = one[0]
            for lane in range(1, LANES // 2):
                total = total + one[lane]
            middle = total * -_MIDDLE if self.terms == 8 else tirx.const(0, "int32")
            T.buffer_store(self.begins[half], middle, [row, block])

    def _add(self, sums: dict[tuple[int, int, int], Any], tile: Any, at: Any) -> None:
        """Add the products of a group's terms to the sums."""
        lanes, halves = self.lanes, f"int16x{2 * self.lanes}"
        for v in range(self.width // LANES):
            for begin in range(0, LANES, lanes):
                own = _ramp(begin, 1, lanes)
                groups = self.packed[tile, at, _ramp(v * LANES + begin, 1, lanes)]
                for pair, weights in enumerate(self._weights(groups)):
                    for row in range(self.rows):
                        for half, pairs in enumerate(self.pairs):
                            data = _broadcast(pairs[row, at * (self.terms // 2) + pair], lanes)
                            data, one = tirx.reinterpret(halves, data), sums[row, v, half]
                            both = tirx.call_llvm_pure_intrin(f"int32x{lanes}", PRODUCT_OF_PAIRS[lanes], data, weights)
                            T.buffer_store(one, one[own] + both, [own])

    def _weights(self, groups: Any) -> list[Any]:
        """Return the weights of groups, each a vector of pairs of 16 bits."""
        lanes, halves = self.lanes, f"int16x{2 * self.lanes}"
        if self.terms == 8:
            mask = _broadcast(tirx.const(0x000F000F, "int32"), lanes)
            shifted = [groups >> _broadcast(tirx.const(4 * i, "int32"), lanes) if i else groups for i in range(4)]
            return [tirx.reinterpret(halves, one & mask) for one in shifted]
        both, eight = tirx.reinterpret(halves, groups), _broadcast(tirx.const(8, "int16"), 2 * lanes)
        return [(both << eight) >> eight, both >> eight]
