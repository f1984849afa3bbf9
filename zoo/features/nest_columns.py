"""The columns of the `nest` schemas: a program's tiling in numbers, one row a program.

Every quantity is a logarithm to the base 2 (an absent one is 0, as a factor of 1 is), so that products are
sums. With S spatial slots (the last axis in the last slot: it is the contiguous one), levels block, virtual
thread, thread, outer serial, inner serial, and reduction slots (the first axis in the first slot):

| columns | holds                                                                                            |
|---------|--------------------------------------------------------------------------------------------------|
| 20      | factor of each of 4 spatial slots at each of 5 levels; further axes are folded into the first    |
| 9       | factor of each of 3 reduction slots at each of 3 levels; further axes are folded into the last   |
| 7       | extent of each slot                                                                              |
| 8       | product over the slots at each level                                                             |
| 12      | tile of a block, of a thread (its virtual threads included) and of its inner loops, by slot      |
| 8       | data reuse of the tile of a block and of a thread, were slot j one operand: 1/(1/Tj + Tj/T)      |
| 8       | largest power of two that divides the thread's factor and the inner tile, by slot                |
| 6       | warps, share of their threads in use, registers, block tile, reduction tile, padding             |
| 12      | four further axes: extent, innermost factor, product of the middle ones                          |
| 16      | what the tile reads, under the access pattern that the axes suggest (see `footprint`)            |
| 3       | vector lengths of the fetches into shared memory                                                 |
| 6       | unroll limit, loops unrolled whole, vector limit, vector length, parallel limit, bindings        |
| 4       | compute locations (CPU), or tensor cores: used, loops pipelined, by cp.async, transposed (GPU)   |
| 18      | how many primitives of each kind (log2(1 + n)), caches, primitives in all                        |
| 3       | blocks by compute unit, share of the last wave in use, threads by compute unit (needs a device)  |
"""

import threading
from collections.abc import Sequence
from functools import cache, partial

import numpy as np

from ..primitives import Primitive, PrimitiveSequence
from .columns import PROGRAM_COLUMNS
from .nest import REDUCTION_LEVELS, SPATIAL_LEVELS, Axis, Outline, Shape, reduction_levels, shape_of, spatial_levels

FOOTPRINT_COLUMNS = 16
# The column of `footprint` that holds the operations a read of the tile that a device's caches serve: on a GPU what a
# block takes from memory, on a CPU what a step of the outer reduction takes from the second-level cache.
_OPERATIONS_A_READ = {"gpu": 7, "cpu": 8}


def footprint(spatial: np.ndarray, reduction: np.ndarray, axes: int, reduced: int) -> np.ndarray:
    """Logarithms to the base 2 of what a program's tiles read.

    Args:
        spatial: (N, 4, 5) logarithms of the factors of each spatial slot and level; reduction: (N, 3, 3) the same.
        axes, reduced: how many spatial and reduction axes the program has.

    Returns:
        (N, 16): elements of both operands that a block reads at a step of its outermost reduction, and their
        sum; the same of a thread at a step of its inner reduction; reads from memory in all; operations a
        read, of a block and of a thread; elements that lie side by side in the first operand and in the
        output; outer reduction steps; whether channels are last; and the operator guessed, one-hot of 3.
    """
    out = np.zeros((len(spatial), FOOTPRINT_COLUMNS), np.float32)
    roles = _roles(reduction, axes, reduced)
    if roles is None:
        return out
    operands, kind, last = roles
    s, r = spatial.sum(1), reduction.sum(1)
    block, steps = spatial[:, :, 1:].sum(2), reduction[:, :, 1:].sum(2)
    thread, step = spatial[:, :, 1] + spatial[:, :, 3:].sum(2), reduction[:, :, 2]
    a, b = operands(block, steps)
    c, d = operands(thread, step)
    outer = r[:, 0]
    out[:, 0], out[:, 1], out[:, 2] = a, b, np.logaddexp2(a, b)
    out[:, 3], out[:, 4], out[:, 5] = c, d, np.logaddexp2(c, d)
    out[:, 6] = s[:, 0] + outer + out[:, 2]
    out[:, 7] = block.sum(1) + steps.sum(1) - out[:, 2]
    out[:, 8] = thread.sum(1) + step.sum(1) - out[:, 5]
    channels = 0 if kind == 0 else 2  # a matrix product has one reduction, in the first slot
    out[:, 9] = np.where(last, reduction[:, channels, 1:].sum(1), block[:, 3])
    out[:, 10] = spatial[:, 3, 2:].sum(1)
    out[:, 11] = outer
    out[:, 12] = last
    out[:, 13 + kind] = 1
    return out


def _roles(reduction: np.ndarray, axes: int, reduced: int):
    """(operands of a tile, operator, whether channels are last); None for an operator not known by its axes.

    The last is one answer, or (N,): programs of one structure may be of convolutions of either layout.
    """
    if axes in (2, 3) and reduced == 1:
        return _matmul, 0, True
    if axes != 4 or reduced not in (2, 3):
        return None
    if reduced == 2:
        return _depthwise, 1, False
    # Kernels are small: the largest reduction is the channels', and it is first (NCHW) or last (NHWC).
    extents = reduction.sum(2)
    last = extents[:, 2] > extents[:, 0]
    return partial(_conv, last), 2, last


def _window(tile: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    return np.log2(np.maximum(np.exp2(tile) + np.exp2(kernel) - 1, 1))


def _matmul(s: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    batch = s[:, :2].sum(1)
    return batch + s[:, 2] + r[:, 0], batch + s[:, 3] + r[:, 0]


def _depthwise(s: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return s[:, 0] + s[:, 1] + _window(s[:, 2], r[:, 0]) + _window(s[:, 3], r[:, 1]), s[:, 1] + r.sum(1)


def _conv(last: np.ndarray, s: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    nhwc = s[:, 0] + r[:, 2] + _window(s[:, 1], r[:, 0]) + _window(s[:, 2], r[:, 1]), s[:, 3] + r.sum(1)
    nchw = s[:, 0] + r[:, 0] + _window(s[:, 2], r[:, 1]) + _window(s[:, 3], r[:, 2]), s[:, 1] + r.sum(1)
    return np.where(last, nhwc[0], nchw[0]), np.where(last, nhwc[1], nchw[1])


SLOTS, REDUCTION_SLOTS, OTHERS, COPIES, LOCATIONS = 4, 3, 4, 3, 4
_SPATIAL = SLOTS * SPATIAL_LEVELS
_REDUCTION = REDUCTION_SLOTS * REDUCTION_LEVELS
_KINDS = (
    *("Split", "Reorder", "Fuse", "Bind", "Parallel", "Vectorize", "Unroll", "ComputeAt", "ReverseComputeAt"),
    *("ComputeInline", "ReverseComputeInline", "CacheRead", "CacheWrite", "RFactor", "Annotate"),
)
_WARP = 32
_COLUMNS = _SPATIAL + _REDUCTION + 7 + 8 + 12 + 8 + 8 + 6 + 3 * OTHERS + COPIES + 16 + 6 + LOCATIONS + 18 + 3
assert _COLUMNS == PROGRAM_COLUMNS, "change it in `columns`, and raise the version of the schemas"
_FOOTPRINT = _SPATIAL + _REDUCTION + 7 + 8 + 12 + 8 + 8 + 6 + 3 * OTHERS
# The products over the slots at each level; the columns of `footprint` of which one is set where the operator is known.
_LEVELS = slice(_SPATIAL + _REDUCTION + 7, _SPATIAL + _REDUCTION + 7 + 8)
_OPERATORS = np.arange(13, FOOTPRINT_COLUMNS)


def intensity(rows: np.ndarray, kind: str) -> np.ndarray:
    """Return the operations a byte of float32 programs, (N,), by their rows (N, columns); 1/2 where it is not known.

    Args:
        kind: `cpu` or `gpu`, as of the schema.
    """
    return np.exp2(rows[:, _FOOTPRINT + _OPERATIONS_A_READ[kind]].astype(np.float64)) * 2 / 4


def bound_scores(rows: np.ndarray, kind: str, latency: np.ndarray, roofline: tuple[float, float] | None) -> np.ndarray:
    """Return the memory-bound and the core-bound score of measured programs, (N, 2) float32 in [0, 1].

    They are the shares of a program's latency that the roofline explains (Williams et al. 2009), not counts of a
    processor's stalls: the time in which the device can move the bytes that the tiles read, and the time in which it
    can do the operations, over the latency. Both are low in a program that waits for something else. Core by memory is
    the intensity over the device's balance.

    Args:
        rows: (N, columns), of a `nest` schema; kind: `cpu` or `gpu`, as of the schema.
        latency: (N,) seconds.
        roofline: FLOP/s and bytes a second of the device, see `Device.roofline`; None: it is not known.

    Returns:
        NaN for an operator that is not known by its axes, and without a roofline.
    """
    scores = np.full((len(rows), 2), np.nan, np.float32)
    known = rows[:, _FOOTPRINT + _OPERATORS].any(axis=1)
    if roofline is None or not known.any():
        return scores
    operations = 2 * np.exp2(rows[known, _LEVELS].sum(axis=1, dtype=np.float64))
    peak, bandwidth = roofline
    moved = operations / intensity(rows[known], kind) / bandwidth
    seconds = np.stack([moved, operations / peak], axis=1)
    scores[known] = np.minimum(1, seconds / latency[known, None])
    return scores


class Plan:
    """The matrices by which the values of one structure become columns."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        n = max(1, outline.size)
        self.spatial = np.zeros((n, SLOTS, SPATIAL_LEVELS), np.float32)
        self.reduction = np.zeros((n, REDUCTION_SLOTS, REDUCTION_LEVELS), np.float32)
        self.extents = np.zeros(n, np.float32)
        for slot, axis in enumerate(reversed(outline.spatial)):
            self._put(self.spatial, SLOTS - 1 - min(slot, SLOTS - 1), spatial_levels(axis), axis)
        for slot, axis in enumerate(outline.reduction):
            self._put(self.reduction, min(slot, REDUCTION_SLOTS - 1), reduction_levels(axis), axis)
        self.others = np.zeros((n, OTHERS, 3), np.float32)
        for slot, axis in enumerate(outline.others[:OTHERS]):
            self.others[axis.extent, slot, 0] = 1
            self.others[axis.values[-1], slot, 1] = 1
            self.others[axis.values[1:-1], slot, 2] = 1
        counts = [*(outline.counts[kind] for kind in _KINDS), outline.shared, outline.local, outline.counts.total()]
        self.fixed = np.log2(1 + np.array(counts, np.float32))

    def _put(self, matrix: np.ndarray, slot: int, levels: list[tuple[int, int]], axis: Axis) -> None:
        for level, value in levels:
            matrix[value, slot, level] = 1
        self.extents[axis.extent] += 1

    def columns(self, values: np.ndarray, units: float) -> np.ndarray:
        """The columns of programs of this structure.

        Args:
            values: (N, size) int64.
            units: compute units of the device (multiprocessors), 0 when there is none.

        Returns:
            (N, PROGRAM_COLUMNS) float32.
        """
        n = len(values)
        if not values.shape[1]:
            values = np.zeros((n, 1), np.int64)
        kept = np.maximum(values, 1)
        logs = np.log2(kept).astype(np.float32)
        twos = np.log2(kept & -kept).astype(np.float32)  # exponent of the largest power of two that divides each
        s = np.tensordot(logs, self.spatial, 1)
        r = np.tensordot(logs, self.reduction, 1)
        parts = [s, r, s.sum(2), r.sum(2), s.sum(1), r.sum(1)]
        aligned = np.tensordot(twos, self.spatial, 1)
        parts += [*_tiles(s), aligned[:, :, 2], aligned[:, :, 3:].sum(2)]
        padding = s.sum((1, 2)) + r.sum((1, 2)) - logs @ self.extents
        padding[(values == 0) @ self.extents > 0] = 0  # an extent that is not known
        parts += [_totals(s, r, padding, self.outline.lanes), np.tensordot(logs, self.others, 1)]
        parts += [footprint(s, r, len(self.outline.spatial), len(self.outline.reduction))]
        parts += [self._lists(values, logs), np.broadcast_to(self.fixed, (n, len(self.fixed)))]
        parts.append(_waves(s, units, self.outline.lanes))
        return np.concatenate([p.reshape(n, -1) for p in parts], axis=1, dtype=np.float32)

    def _lists(self, values: np.ndarray, logs: np.ndarray) -> np.ndarray:
        outline, n = self.outline, len(values)
        out = np.zeros((n, COPIES + 6 + LOCATIONS), np.float32)
        for i, at in enumerate(outline.fetches[:COPIES]):
            out[:, i] = logs[:, at]
        at = COPIES
        if outline.unrolls:
            limits = values[:, outline.unrolls]
            out[:, at] = np.log2(1 + np.maximum(limits, 0)).max(1)
            out[:, at + 1] = (limits < 0).sum(1)
        if outline.limits:
            out[:, at + 2] = logs[:, outline.limits].max(1)
        if outline.vectors:
            out[:, at + 3] = logs[:, outline.vectors].max(1)
        if outline.parallels:
            out[:, at + 4] = np.log2(2 + values[:, outline.parallels]).max(1)
        if outline.binds:
            out[:, at + 5] = outline.binds
            out[:, at + 6 :] = outline.tensor_core
        for i, where in enumerate(outline.locations[:LOCATIONS]):
            out[:, at + 6 + i] = (values[:, where] + 3) / 4
        return out


def _tiles(s: np.ndarray) -> list[np.ndarray]:
    """Return the tile of a block, a thread and its inner loops by slot, and the reuse of the first two."""
    block, thread, inner = s[:, :, 1:].sum(2), s[:, :, 1] + s[:, :, 3:].sum(2), s[:, :, 3:].sum(2)
    return [block, thread, inner, _reuse(block), _reuse(thread)]


def _reuse(tile: np.ndarray) -> np.ndarray:
    rest = tile.sum(1, keepdims=True) - tile
    return -np.logaddexp2(-tile, -rest)


def _totals(s: np.ndarray, r: np.ndarray, padding: np.ndarray, lanes: int) -> np.ndarray:
    threads = lanes * np.exp2(np.minimum(s[:, :, 2].sum(1), 20)).round()
    warps = np.ceil(threads / _WARP)
    inside = s[:, :, 1].sum(1) + s[:, :, 3:].sum((1, 2))
    block = s[:, :, 1:].sum((1, 2))
    return np.stack(
        [np.log2(warps), threads / (_WARP * warps), inside, block, r[:, :, 1:].sum((1, 2)), padding], axis=1
    )


def _waves(s: np.ndarray, units: float, lanes: int) -> np.ndarray:
    if not units:
        return np.zeros((len(s), 3), np.float32)
    # Rounded, or a grid that fills every unit exactly would look like one that needs a wave more.
    waves = np.exp2(np.minimum(s[:, :, 0].sum(1), 30)).round() / units
    used = waves / np.ceil(waves)
    threads = np.log2(waves * lanes) + s[:, :, 2].sum(1)
    return np.stack([np.clip(np.log2(waves), -8, 12), used, np.clip(threads, -8, 24)], axis=1)


_PRIMITIVES, _STRUCTURES = 1 << 18, 1 << 14


class NestEncoder:
    """Remember the structures (a few a task) and primitives seen so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._ids: dict[Shape, int] = {}
        self._seen: dict[Primitive, tuple[int, tuple[int, ...]]] = {}

    def rows(self, sequences: Sequence[PrimitiveSequence], units: float = 0.0) -> np.ndarray:
        """(N, PROGRAM_COLUMNS) float32; `units` are the device's compute units, 0 without a device."""
        out = np.zeros((len(sequences), PROGRAM_COLUMNS), np.float32)
        groups: dict[tuple[int, ...], tuple[list[int], list[list[int]]]] = {}
        with self._lock:
            if len(self._seen) > _PRIMITIVES or len(self._plans) > _STRUCTURES:
                for memory in (self._seen, self._plans, self._ids):
                    memory.clear()
            for i, sequence in enumerate(sequences):
                key, values = self._read(sequence)
                members, rows = groups.setdefault(key, ([], []))
                members.append(i)
                rows.append(values)
            for key, (members, rows) in groups.items():
                out[members] = self._plans[key].columns(np.array(rows, np.int64), units)
        return out

    def _read(self, sequence: PrimitiveSequence) -> tuple[tuple[int, ...], list[int]]:
        """The structure's key and the values of a program."""
        key: list[int] = []
        values: list[int] = []
        for primitive in sequence.primitives:
            known = self._seen.get(primitive)
            if known is None:
                shape, numbers = shape_of(primitive)
                known = self._seen[primitive] = self._ids.setdefault(shape, len(self._ids)), numbers
            key.append(known[0])
            values.extend(known[1])
        structure = tuple(key)
        if structure not in self._plans:
            self._plans[structure] = Plan(Outline(shape_of(p)[0] for p in sequence.primitives))
        return structure, values


@cache
def encoder(_kind: str) -> NestEncoder:
    """Return the encoder of a kind of device: CPU and GPU programs share no structure."""
    return NestEncoder()
