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
| 4       | compute locations (CPU)                                                                          |
| 18      | how many primitives of each kind (log2(1 + n)), caches, primitives in all                        |
| 3       | blocks by compute unit, share of the last wave in use, threads by compute unit (needs a device)  |
"""

from __future__ import annotations

import numpy as np

from .footprint import footprint
from .nest import REDUCTION_LEVELS, SPATIAL_LEVELS, Axis, Outline, reduction_levels, spatial_levels
from .sizes import PROGRAM_COLUMNS

SLOTS, REDUCTION_SLOTS, OTHERS, COPIES, LOCATIONS = 4, 3, 4, 3, 4
_SPATIAL = SLOTS * SPATIAL_LEVELS
_REDUCTION = REDUCTION_SLOTS * REDUCTION_LEVELS
_KINDS = (
    *("Split", "Reorder", "Fuse", "Bind", "Parallel", "Vectorize", "Unroll", "ComputeAt", "ReverseComputeAt"),
    *("ComputeInline", "ReverseComputeInline", "CacheRead", "CacheWrite", "RFactor", "Annotate"),
)
_WARP = 32
_COLUMNS = _SPATIAL + _REDUCTION + 7 + 8 + 12 + 8 + 8 + 6 + 3 * OTHERS + COPIES + 16 + 6 + LOCATIONS + 18 + 3
assert _COLUMNS == PROGRAM_COLUMNS, "say it in `sizes`, and raise the version of the schemas"


class Plan:
    """How the values of one structure become columns: the matrices of its linear columns."""

    def __init__(self, found: Outline) -> None:
        self.found = found
        n = max(1, found.size)
        self.spatial = np.zeros((n, SLOTS, SPATIAL_LEVELS), np.float32)
        self.reduction = np.zeros((n, REDUCTION_SLOTS, REDUCTION_LEVELS), np.float32)
        self.extents = np.zeros(n, np.float32)
        for place, axis in enumerate(reversed(found.spatial)):
            self._put(self.spatial, SLOTS - 1 - min(place, SLOTS - 1), spatial_levels(axis), axis)
        for place, axis in enumerate(found.reduction):
            self._put(self.reduction, min(place, REDUCTION_SLOTS - 1), reduction_levels(axis), axis)
        self.others = np.zeros((n, OTHERS, 3), np.float32)
        for place, axis in enumerate(found.others[:OTHERS]):
            self.others[axis.extent, place, 0] = 1
            self.others[axis.values[-1], place, 1] = 1
            self.others[axis.values[1:-1], place, 2] = 1
        self.fixed = _fixed(found)

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
        logs = np.log2(np.maximum(values, 1)).astype(np.float32)
        twos = _twos(values)
        s = np.tensordot(logs, self.spatial, 1)
        r = np.tensordot(logs, self.reduction, 1)
        parts = [s, r, s.sum(2), r.sum(2), s.sum(1), r.sum(1)]
        aligned = np.tensordot(twos, self.spatial, 1)
        parts += [*_tiles(s), aligned[:, :, 2], aligned[:, :, 3:].sum(2)]
        padding = s.sum((1, 2)) + r.sum((1, 2)) - logs @ self.extents
        padding[(values == 0) @ self.extents > 0] = 0  # an extent that was not told
        parts += [_totals(s, r, padding), np.tensordot(logs, self.others, 1)]
        parts += [footprint(s, r, len(self.found.spatial), len(self.found.reduction))]
        parts += [self._lists(values, logs), np.broadcast_to(self.fixed, (n, len(self.fixed))), _waves(s, units)]
        return np.concatenate([p.reshape(n, -1) for p in parts], axis=1, dtype=np.float32)

    def _lists(self, values: np.ndarray, logs: np.ndarray) -> np.ndarray:
        found, n = self.found, len(values)
        out = np.zeros((n, COPIES + 6 + LOCATIONS), np.float32)
        for i, at in enumerate(found.fetches[:COPIES]):
            out[:, i] = logs[:, at]
        at = COPIES
        if found.unrolls:
            limits = values[:, found.unrolls]
            out[:, at] = np.log2(1 + np.maximum(limits, 0)).max(1)
            out[:, at + 1] = (limits < 0).sum(1)
        if found.limits:
            out[:, at + 2] = logs[:, found.limits].max(1)
        if found.vectors:
            out[:, at + 3] = logs[:, found.vectors].max(1)
        if found.parallels:
            out[:, at + 4] = np.log2(2 + values[:, found.parallels]).max(1)
        if found.binds:
            out[:, at + 5] = len(found.binds)
        for i, where in enumerate(found.locations[:LOCATIONS]):
            out[:, at + 6 + i] = (values[:, where] + 3) / 4
        return out


def _fixed(found: Outline) -> np.ndarray:
    counts = [found.counts[kind] for kind in _KINDS]
    return np.log2(1 + np.array([*counts, found.shared, found.local, sum(found.counts.values())], np.float32))


def _twos(values: np.ndarray) -> np.ndarray:
    """Exponent of the largest power of two that divides each value."""
    kept = np.maximum(values, 1)
    return np.log2(kept & -kept).astype(np.float32)


def _tiles(s: np.ndarray) -> list[np.ndarray]:
    """Tiles of a block, a thread and its inner loops by slot, and the reuse of the first two."""
    block, thread, inner = s[:, :, 1:].sum(2), s[:, :, 1] + s[:, :, 3:].sum(2), s[:, :, 3:].sum(2)
    return [block, thread, inner, _reuse(block), _reuse(thread)]


def _reuse(tile: np.ndarray) -> np.ndarray:
    rest = tile.sum(1, keepdims=True) - tile
    return -np.logaddexp2(-tile, -rest)


def _totals(s: np.ndarray, r: np.ndarray, padding: np.ndarray) -> np.ndarray:
    threads = np.exp2(np.minimum(s[:, :, 2].sum(1), 20)).round()
    warps = np.ceil(threads / _WARP)
    inside = s[:, :, 1].sum(1) + s[:, :, 3:].sum((1, 2))
    block = s[:, :, 1:].sum((1, 2))
    return np.stack(
        [np.log2(warps), threads / (_WARP * warps), inside, block, r[:, :, 1:].sum((1, 2)), padding], axis=1
    )


def _waves(s: np.ndarray, units: float) -> np.ndarray:
    if not units:
        return np.zeros((len(s), 3), np.float32)
    # Rounded, or a grid that fills every unit exactly would look like one that needs a wave more.
    waves = np.exp2(np.minimum(s[:, :, 0].sum(1), 30)).round() / units
    used = waves / np.ceil(waves)
    return np.stack(
        [np.clip(np.log2(waves), -8, 12), used, np.clip(np.log2(waves) + s[:, :, 2].sum(1), -8, 24)], axis=1
    )
