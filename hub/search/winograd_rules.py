"""Design spaces of Winograd's two transforms, as MetaSchedule takes them from a block's annotation `schedule_rule`."""

from __future__ import annotations

from typing import Any

_LANES = 64  # floats of a tile's innermost loop, at most


def register_rules() -> None:
    """Make the rules known to MetaSchedule, on CPUs; needed wherever design spaces are generated."""
    import tvm

    for rule in (winograd_input, winograd_output):
        tvm.register_global_func(f"s_tir.meta_schedule.cpu.tchub.{rule.__name__}", rule, override=True)


def winograd_input(schedule: Any, block: Any) -> list[Any]:
    """Return the space of the input's transform: a tile of some channels is read, transformed and written."""
    half = _producer(schedule, block)
    tile = _producer(schedule, half)
    product, p, channels = schedule.get_loops(block)
    outer, inner = _split(schedule, channels)
    schedule.reorder(p, outer, product, inner)
    for one in (half, tile):
        schedule.compute_at(one, outer, preserve_unit_loops=True)
    _finish(schedule, [block], p, [(block, 1), (half, 2), (tile, 2)])
    return [schedule]


def winograd_output(schedule: Any, block: Any) -> list[Any]:
    """Return the space of the output's transform and the elementwise operators that follow it, tile by tile."""
    half = _producer(schedule, block)
    m, last = int(schedule.get(schedule.get_loops(half)[3]).extent), block
    while consumers := list(schedule.get_consumers(last)):
        schedule.compute_inline(last)
        last = consumers[0]
    n, h, w, channels = schedule.get_loops(last)
    (rows, x), (columns, y) = (schedule.split(loop, [None, m]) for loop in (h, w))
    outer, inner = _split(schedule, channels)
    schedule.reorder(n, rows, columns, outer, x, y, inner)
    schedule.compute_at(half, outer, preserve_unit_loops=True)
    _finish(schedule, [last], schedule.fuse(n, rows, columns), [(last, 2), (half, 2)])
    return [schedule]


def _split(schedule: Any, loop: Any) -> list[Any]:
    return schedule.split(loop, schedule.sample_perfect_tile(loop, n=2, max_innermost_factor=_LANES))


def _producer(schedule: Any, block: Any) -> Any:
    return schedule.get_producers(block)[0]


def _finish(schedule: Any, unused: Any, outermost: Any, blocks: list[tuple[Any, int]]) -> None:
    """Unroll the loops over a tile, so that the rows of the matrices are constants, and vectorise the channels."""
    schedule.parallel(outermost)
    for block, count in blocks:
        *_, inner = loops = schedule.get_loops(block)
        for loop in loops[-1 - count : -1]:
            schedule.unroll(loop)
        schedule.vectorize(inner)
    schedule.annotate(schedule.get_sblock("root"), "schedule_rule", "None")
