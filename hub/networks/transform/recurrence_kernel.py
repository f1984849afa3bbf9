"""The kernel of a recurrent layer for CPUs: step by step, the gates of a few units at a time in registers."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .exponentials import power_of_e, tanh

# The layers by their kinds, with the letters of their gates in the order of the weights, as PyTorch and ONNX have them:
# input, forget, output and candidate `g`; reset, update `z` and candidate `n`. In `zrn_reset_before` the candidate
# reads the state times the reset gate; elsewhere that multiplies the product.
KINDS = {"ifgo": 4, "iofg": 4, "rzn": 3, "zrn": 3, "zrn_reset_before": 3, "tanh": 1, "relu": 1}
LANES = 16  # numbers of a vector
# x86's products of pairs of numbers of 16 bits, by how many sums of two they give. LLVM adds these up in the same
# instruction where there is VNNI.
PRODUCT_OF_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}
MOST_CODE = (1 << 15) - 1
"""The largest whole number of 16 bits."""
_ramp: Any = tirx.Ramp
_broadcast: Any = tirx.Broadcast
_LEAST_PEAK = 1e-30  # a state of zeros has no scale of its own


def _most_sums(lanes: int) -> tuple[int, int]:
    """Return how many vectors of sums are kept in registers of a row, and of all rows together.

    All registers hold 32 vectors with AVX-512, and 8 with AVX2 and on Arm.

    Args:
        lanes: numbers of a CPU's vector register.
    """
    return (8, 24) if lanes == LANES else (4, 6)


def width_of(hidden: int, gates: int, lanes: int) -> int:
    """Return how many hidden units have their gates computed together: the least padding, then the most."""
    widths = [LANES * vectors for vectors in range(1, max(1, _most_sums(lanes)[0] // gates) + 1)]
    return min(widths, key=lambda width: (ceil(hidden / width) * width, -width))


def recurrence_function(
    projected: Any, packed: Any, scales: Any, bias: Any, *states: Any, kind: str, backwards: bool, lanes: int,
    most: int = 0,
) -> Any:  # fmt: skip
    """Return the tensor function of `recurrence.recurrence`, whose weights are packed as `_Chains` reads them.

    Args:
        scales: by which sums of whole numbers are multiplied, `[directions, gates, tiles * width]`, where the packed
            weights are int8; else None.
        most: the largest whole number that states become before they are multiplied by int8.
    """
    own = [] if scales is None else [scales]
    shape = [projected.shape[i] for i in (0, 1, 2, 4)]
    results = [shape, *(one.shape for one in states[1:])]
    types = [str(projected.dtype)] * len(results)

    def body(inputs: Any, outputs: Any) -> Any:
        with IRBuilder() as builder:
            _Chains(kind, backwards, lanes, inputs[len(own) :], outputs, *inputs[: len(own)], most=most).write()
            return builder.get()

    return te.extern(results, [*own, projected, packed, bias, *states], body, name="recurrence", dtype=types)


def peak_and_total(value: Callable[[Any], Any], vectors: int, dtype: str = "float32") -> tuple[Any, Any]:
    """Write what finds the largest magnitude of some numbers, and the sum of magnitudes, and return both.

    A maximum may lose what is no number; a sum is none then.

    Args:
        value: gives the number at a position.
        vectors: of the numbers.
    """
    peaks, totals = (T.alloc_buffer([LANES], dtype) for _ in range(2))
    with T.vectorized(0, LANES) as lane:
        for one in (peaks, totals):
            T.buffer_store(one, tirx.const(0, dtype), [lane])
    with T.serial(0, vectors) as v, T.vectorized(0, LANES) as lane:
        x = te.abs(value(v * LANES + lane))
        T.buffer_store(peaks, te.max(peaks[lane], x), [lane])
        T.buffer_store(totals, totals[lane] + x, [lane])
    peak, total = peaks[0], totals[0]
    for lane in range(1, LANES):
        peak, total = te.max(peak, peaks[lane]), total + totals[lane]
    return peak, total


class _Chains:
    """The kernel of a recurrent layer: for each direction and some rows of the batch, one step after the other.

    Args:
        lanes: numbers of a CPU's vector register.
        inputs: `projected`; the packed weights `[directions, tiles, hidden, gates, width]`, or of int8
            `[directions, tiles, pairs, gates, width * 2]`; `bias`; and the states.
        outputs: the states of all steps, and of an LSTM the last cells.
        scales, most: see `recurrence_function`.
    """

    def __init__(
        self, kind: str, backwards: bool, lanes: int, inputs: Sequence[Any], outputs: Sequence[Any],
        scales: Any = None, *, most: int = 0,
    ) -> None:  # fmt: skip
        self.kind, self.backwards, self.lanes, self.scales, self.most = kind, backwards, lanes, scales, most
        self.projected, self.packed, self.bias, *self.states = inputs
        self.result, *self.cells = outputs
        self.steps, self.batch, self.directions, _, self.hidden = map(int, self.projected.shape)
        _, self.tiles, self.factors, self.gates, width = map(int, self.packed.shape)
        self.width = width if scales is None else width // 2
        self.dtype = str(self.projected.dtype)
        most = max(1, _most_sums(lanes)[1] // (self.gates * self.width // LANES))
        self.blocks = ceil(self.batch / most)
        self.rows = ceil(self.batch / self.blocks)
        self.letters = kind.partition("_")[0] if self.gates > 1 else "h"
        self.pads = self.tiles * self.width > self.hidden

    def write(self) -> None:
        """Write the loops over the chains, each of which has its own states."""
        with T.parallel(0, self.directions * self.blocks) as chain:
            # The last rows begin earlier where there are fewer, and compute some that others compute, too.
            first = tirx.floormod(chain, self.blocks) * self.rows
            last: Any = te.min(first, self.batch - self.rows)
            self.d, self.first = tirx.floordiv(chain, self.blocks), last
            self.h = self._buffer(2, self.rows)  # of the last step, and of this one
            self.c: Any = self._buffer(self.rows) if self.cells else None
            self.resets: Any = self._buffer(self.rows) if self._resets_before else None
            self.updates: Any = self._buffer(self.rows) if self._resets_before else None
            # Where the units do not fill the last tile, what is read is copied, and filled up by zeros.
            self.inputs: Any = self._buffer(self.rows, self.gates) if self.pads else None
            self.own: Any = self._buffer() if self.pads and self._resets_after else None
            # A state in pairs of whole numbers of 16 bits, and the number that 1 stands for.
            pairs = self.tiles * self.width // 2
            self.pairs: Any = T.alloc_buffer([self.rows, pairs], "int32") if self._is_whole else None
            self.unit: Any = T.alloc_buffer([self.rows], self.dtype) if self._is_whole else None
            self._begin()
            with T.serial(0, self.steps) as step:
                self.now = self._step_of(step)
                self.old, self.new = tirx.floormod(step, 2), tirx.floormod(step + 1, 2)
                if self.pads:
                    with T.grid(self.rows, self.gates, self.hidden) as (row, gate, j):
                        self._put(self.inputs, self._given(row, gate, j), row, gate, j)
                self._tiled("rz" if self._resets_before else self.letters)
                if self._resets_before:
                    self._tiled("n")
                if self.pads:
                    with T.grid(self.rows, self.hidden) as (row, j):
                        self._put(self.result, self.h[self.new, row, j], self.now, self.first + row, self.d, j)
            if self.cells:
                with T.grid(self.rows, self.hidden) as (row, j):
                    self._put(self.cells[0], self.c[row, j], self.d, self.first + row, j)

    @property
    def _is_whole(self) -> bool:
        return self.scales is not None

    @property
    def _resets_before(self) -> bool:
        return self.kind.endswith("before")

    @property
    def _resets_after(self) -> bool:
        return self.gates == 3 and not self._resets_before

    def _buffer(self, *shape: int) -> Any:
        """Allocate numbers for the units of all tiles, zeros to begin with where the units do not fill them."""
        shape = (*shape, self.tiles * self.width)
        buffer = T.alloc_buffer([*shape], self.dtype)
        if self.pads:
            with T.grid(*shape) as i:
                self._put(buffer, tirx.const(0, self.dtype), *(i if len(shape) > 1 else [i]))
        return buffer

    def _step_of(self, step: Any) -> Any:
        if self.directions == 1:
            return self.steps - 1 - step if self.backwards else step
        return step + self.d * (self.steps - 1 - 2 * step)

    def _begin(self) -> None:
        with T.grid(self.rows, self.hidden) as (row, j):
            self._put(self.h, self.states[0][self.d, self.first + row, j], 0, row, j)
            if self.cells:
                self._put(self.c, self.states[1][self.d, self.first + row, j], row, j)
        if self.own is not None:
            with T.serial(0, self.hidden) as j:
                self._put(self.own, self.bias[self.d, j], j)

    def _given(self, row: Any, gate: Any, unit: Any) -> Any:
        return self.projected[self.now, self.first + row, self.d, gate, unit]

    def _tiled(self, letters: str) -> None:
        """Write the products of a state for gates, and what comes of them, tile by tile."""
        if self._is_whole:
            self._round(lambda row, k: self.resets[row, k] if letters == "n" else self.h[self.old, row, k])
        dtype = "int32" if self._is_whole else self.dtype
        with T.serial(0, self.tiles) as tile:
            rows, vectors = range(self.rows), range(self.width // LANES)
            sums = {
                (row, letter, v): T.alloc_buffer([LANES], dtype)
                for row in rows for letter in letters for v in vectors
            }  # fmt: skip
            for (row, letter, v), one in sums.items():
                with T.vectorized(0, LANES) as lane:
                    unit = self._unit(tile, v, lane)
                    begin = tirx.const(0, dtype) if self._is_whole else self._addend(letter, row, unit)
                    self._put(one, begin, lane)
            with T.serial(0, self.factors) as k:
                for letter in letters:
                    for v in vectors:
                        for row in rows:
                            one, gate = sums[row, letter, v], self.letters.index(letter)
                            if self._is_whole:
                                self._add_pairs(one, tile, k, gate, v, row)
                                continue
                            state = self.resets[row, k] if letters == "n" else self.h[self.old, row, k]
                            with T.vectorized(0, LANES) as lane:
                                weight = self.packed[self.d, tile, k, gate, v * LANES + lane]
                                self._put(one, one[lane] + state * weight, lane)
            # What is read several times, as an expression it would be written out as often, for LLVM to find alike.
            kept = {letter: T.alloc_buffer([LANES], self.dtype) for letter in letters}
            for row in rows:
                for v in vectors:
                    with T.vectorized(0, LANES) as lane:
                        unit = self._unit(tile, v, lane)
                        for letter in letters:
                            value = self._scaled(sums[row, letter, v][lane], letter, row, unit)
                            self._put(kept[letter], value, lane)
                        self._finish(kept, lane, row, unit)
                    if not self.pads and letters != "rz":
                        with T.vectorized(0, LANES) as lane:
                            unit = self._unit(tile, v, lane)
                            value, at = self.h[self.new, row, unit], (self.now, self.first + row, self.d, unit)
                            self._put(self.result, value, *at)

    def _round(self, state: Any) -> None:
        """Write a state, of a row and a unit, as pairs of whole numbers; a row's largest magnitude is `most`."""
        zero, most, least = (tirx.const(x, self.dtype) for x in (0, self.most, _LEAST_PEAK))
        vectors = self.tiles * self.width // LANES
        factor = T.alloc_buffer([1], self.dtype)
        with T.serial(0, self.rows) as row:
            peak, total = peak_and_total(lambda k, row=row: state(row, k), vectors, self.dtype)
            self._put(self.unit, tirx.Select(total >= zero, peak / most, total), row)
            self._put(factor, most / te.max(peak, least), 0)
            with T.serial(0, vectors) as v, T.vectorized(0, LANES // 2) as lane:
                pair = v * (LANES // 2) + lane
                low, high = (tirx.nearbyint(state(row, 2 * pair + i) * factor[0]).astype("int32") for i in range(2))
                self._put(self.pairs, (low & 0xFFFF) | (high << 16), row, pair)

    def _add_pairs(self, sums: Any, tile: Any, k: Any, gate: int, vector: int, row: int) -> None:
        """Add the products of a pair of numbers of a state to the sums of a vector of units."""
        lanes, halves = self.lanes, f"int16x{2 * self.lanes}"
        state = tirx.reinterpret(halves, _broadcast(self.pairs[row, k], lanes))
        for begin in range(0, LANES, lanes):
            own, at = _ramp(begin, 1, lanes), 2 * (vector * LANES + begin)
            weights = self.packed[self.d, tile, k, gate, _ramp(at, 1, 2 * lanes)].astype(halves)
            both = tirx.call_llvm_pure_intrin(f"int32x{lanes}", PRODUCT_OF_PAIRS[lanes], state, weights)
            self._put(sums, sums[own] + both, own)

    def _unit(self, tile: Any, vector: int, lane: Any) -> Any:
        return tile * self.width + vector * LANES + lane

    def _scaled(self, one: Any, letter: str, row: int, unit: Any) -> Any:
        """Return a gate's sum, of weights that may be whole numbers."""
        if not self._is_whole:
            return one
        scale = self.scales[self.d, self.letters.index(letter), unit] * self.unit[row]
        return self._addend(letter, row, unit) + one.astype(self.dtype) * scale

    def _addend(self, letter: str, row: int, unit: Any) -> Any:
        """Return what a sum begins with: a GRU's candidate is multiplied by a gate before the inputs' part comes."""
        if letter == "n" and self._resets_after:
            return self.own[unit] if self.pads else self.bias[self.d, unit]
        return self._inputs(letter, row, unit)

    def _inputs(self, letter: str, row: int, unit: Any) -> Any:
        """Return what the inputs give to a gate."""
        gate = self.letters.index(letter)
        return self.inputs[row, gate, unit] if self.pads else self._given(row, gate, unit)

    def _finish(self, kept: dict[str, Any], lane: Any, row: int, unit: Any) -> None:
        """Write the states of a vector of units, given the sums of their gates."""
        old, new = self.h[self.old, row, unit], [self.new, row, unit]
        own = {letter: buffer[lane] for letter, buffer in kept.items()}
        if "i" in own:
            i, f, o = (self._sigmoid(own[letter]) for letter in "ifo")
            self._put(self.c, f * self.c[row, unit] + i * self._tanh(own["g"]), row, unit)
            self._put(self.h, o * self._tanh(self.c[row, unit]), *new)
        elif "h" in own:
            x = own["h"]
            self._put(self.h, self._tanh(x) if self.kind == "tanh" else te.max(tirx.const(0, self.dtype), x), *new)
        elif "n" not in own:
            self._put(self.resets, self._sigmoid(own["r"]) * old, row, unit)
            self._put(self.updates, self._sigmoid(own["z"]), row, unit)
        else:
            z = self.updates[row, unit] if self._resets_before else self._sigmoid(own["z"])
            if not self._resets_before:
                self._put(kept["n"], self._inputs("n", row, unit) + self._sigmoid(own["r"]) * own["n"], lane)
            self._put(kept["n"], self._tanh(own["n"]), lane)
            self._put(self.h, own["n"] + z * (old - own["n"]), *new)

    def _put(self, buffer: Any, value: Any, *at: Any) -> None:
        T.buffer_store(buffer, value, [*at])

    def _sigmoid(self, x: Any) -> Any:
        if self.dtype != "float32":
            return tirx.sigmoid(x)
        return tirx.const(1.0, "float32") / (tirx.const(1.0, "float32") + power_of_e(-x))

    def _tanh(self, x: Any) -> Any:
        return tanh(x) if self.dtype == "float32" else tirx.tanh(x)
