"""Sums and maxima over other axes than the last, as poolings of channels-last images are, or over all axes.

MetaSchedule parallelises such a reduction, or splits the sum, and leaves its loops as they are: the innermost one then
reads a row of channels at each step. Here channels are innermost, in vector registers.

Of a reduction to a single number, as a dynamically quantised product finds the range of its data, each lane of several
registers is a reduction of its own. The design space of either is one program.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm.tirx import IntImm, IterVar

from .elementwise import FEW, blocks_of, extents_around, strides_of

RULE, WHOLE = "tchub.channel_reduction", "tchub.whole_reduction"
# Channels whose results are in registers at a time: as many vectors as hide how long an addition takes.
_WIDTHS = (64, 32, 16, 8)
# Parts of a reduction to one number that cores may share, and elements that are worth the lanes.
_PARTS, _WORTH_LANES = 16, 256


def mark_reduction(schedule: Any) -> bool:
    """Name the design space of a function of one such reduction, with what is elementwise around it.

    Behind one over all axes, nothing may follow. Other poolings lose the name of the rule that TVM has for GPUs alone:
    it warns where it lacks one.

    Returns:
        Whether the function is changed.
    """
    pools = [one for one in blocks_of(schedule) if any(map(_is_pooling, schedule.get(one).annotations.items()))]
    for one in pools:
        schedule.unannotate(one, "schedule_rule")
    rules = ((RULE, _reduction(schedule)), (WHOLE, _whole_reduction(schedule)))
    rule, reduction = next((pair for pair in rules if pair[1] is not None), ("", None))
    if reduction is not None:
        schedule.annotate(reduction, "schedule_rule", rule)
    return bool(pools) or reduction is not None


def _reduction(schedule: Any) -> Any:
    """Return the one reduction of a function that reads neighbours along its last axis; None for another function."""
    blocks = blocks_of(schedule)
    reductions = [one for one in blocks if schedule.get(one).init is not None]
    if len(reductions) != 1 or sum(not schedule.get_consumers(one) for one in blocks) != 1:
        return None
    (reduction,) = reductions
    if len(schedule.get(reduction).reads) != 1:  # as of a product
        return None
    for one in blocks:
        statement, loops = schedule.get(one), [schedule.get(loop) for loop in schedule.get_loops(one)]
        reduced = [int(axis.iter_type) == IterVar.CommReduce for axis in statement.iter_vars]
        if not loops or len(loops) != len(reduced) or not all(isinstance(loop.extent, IntImm) for loop in loops):
            return None
        if any(reduced) != (one is reduction) or not all(map(_is_pooling, statement.annotations.items())):
            return None
    statement = schedule.get(reduction)
    reduced = [int(axis.iter_type) == IterVar.CommReduce for axis in statement.iter_vars]
    spatial = [number for number, yes in enumerate(reduced) if not yes]
    read = [[stride for writes, stride, target in axis if not writes and not target] for axis in strides_of(statement)]
    if not spatial or reduced[-1] is False or len(read[0]) != 1:
        return None
    loops = schedule.get_loops(reduction)
    width, results = int(schedule.get(loops[spatial[-1]]).extent), [loops[number] for number in spatial]
    if schedule.get(blocks[-1]).init is None:
        behind = schedule.get_loops(blocks[-1])
        # What is broadcast behind it would compute each sum several times.
        if _extents(schedule, behind) != _extents(schedule, results) or int(schedule.get(behind[-1]).extent) != width:
            return None
    beside = read[spatial[-1]] == [1] and all(abs(read[number][0]) != 1 for number, yes in enumerate(reduced) if yes)
    return reduction if beside and any(width % lanes == 0 for lanes in _WIDTHS) else None


def _extents(schedule: Any, loops: Sequence[Any]) -> list[int]:
    """Return the extents of loops that are not 1."""
    return [extent for loop in loops if (extent := int(schedule.get(loop).extent)) > 1]


def _is_pooling(annotation: tuple[str, Any]) -> bool:
    """Return whether an annotation names TVM's rule of a pooling, which there is for cards alone."""
    return annotation[0] == "schedule_rule" and "pool" in str(annotation[1])


def channel_reduction(schedule: Any, block: Any) -> list[Any]:
    """Return the space of a reduction over other axes than the last."""
    blocks = blocks_of(schedule)
    last = blocks[-1]
    if schedule.get(last).name_hint == schedule.get(block).name_hint:
        last = schedule.cache_write(block, 0, "global")
    for one in blocks:
        if schedule.get(one).name_hint not in (schedule.get(block).name_hint, schedule.get(last).name_hint):
            schedule.compute_inline(one)
    *outer, channels = schedule.get_loops(last)
    extents = [int(schedule.get(loop).extent) for loop in (*outer, channels)]
    width = next(width for width in _WIDTHS if extents[-1] % width == 0)
    tile, lanes = schedule.split(channels, [None, width])
    schedule.vectorize(lanes)
    around = schedule.fuse(*outer, tile)
    if prod(extents) > FEW:
        schedule.parallel(around)
    schedule.compute_at(block, around, preserve_unit_loops=True)
    loops = schedule.get_loops(block)[1:]
    kinds = [int(axis.iter_type) for axis in schedule.get(block).iter_vars]
    sums = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == IterVar.CommReduce]
    row = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == IterVar.DataPar][-1]
    schedule.reorder(*sums, row)
    schedule.vectorize(row)
    start = schedule.decompose_reduction(block, sums[0])
    schedule.vectorize(schedule.get_loops(start)[-1])
    schedule.annotate(schedule.get_sblock("root"), "schedule_rule", "None")
    return [schedule]


def _whole_reduction(schedule: Any) -> Any:
    """Return the one reduction of a function, where it is over all axes and the last block, or None."""
    blocks = blocks_of(schedule)
    for one in blocks:
        statement, loops = schedule.get(one), [schedule.get(loop) for loop in schedule.get_loops(one)]
        if statement.annotations or len(loops) != len(statement.iter_vars):
            return None
        if not all(isinstance(loop.extent, IntImm) for loop in loops):
            return None
        # Before it stands what is elementwise.
        if (one is blocks[-1]) != (statement.init is not None):
            return None
    if not blocks or len(schedule.get(blocks[-1]).reads) != 1:  # as of a product
        return None
    axes, extents = schedule.get(blocks[-1]).iter_vars, extents_around(schedule, blocks[-1])
    single = all(int(axis.iter_type) == IterVar.CommReduce or int(axis.dom.extent) == 1 for axis in axes)
    return blocks[-1] if single and prod(extents) >= _WORTH_LANES and _row(extents) else None


def _row(extents: Sequence[int]) -> int:
    """Return how many of the last loops together have whole vectors, or 0 where none do."""
    return next((n for n in range(1, len(extents) + 1) if prod(extents[-n:]) % _WIDTHS[-1] == 0), 0)


def whole_reduction(schedule: Any, block: Any) -> list[Any]:
    """Return the space of a reduction over all axes."""
    for one in blocks_of(schedule)[:-1]:
        schedule.compute_inline(one)
    # What was permuted before is read in the order in which it lies.
    reads = [
        [abs(stride) for writes, stride, own in axis if not writes and not own]
        for axis in strides_of(schedule.get(block))
    ]
    apart = [max(strides, default=0) for strides in reads]
    loops, extents = schedule.get_loops(block), extents_around(schedule, block)
    order = sorted(range(len(loops)), key=lambda number: (extents[number] > 1, -apart[number]))
    schedule.reorder(*(loops[number] for number in order))
    extents = [extents[number] for number in order]
    row, total = prod(extents[-_row(extents) :]), prod(extents)
    count = _row(extents) if row < total else len(extents)  # loops of one step are no loops around
    lanes = next(lanes for lanes in _WIDTHS if row % lanes == 0)
    loops = schedule.get_loops(block)
    steps, lane = schedule.split(schedule.fuse(*loops[-count:]), [None, lanes])
    outer = schedule.fuse(*loops[:-count]) if total > row else steps
    around = total // row if total > row else row // lanes
    parts = next(n for n in range(_PARTS, 0, -1) if around % n == 0) if total > FEW else 1
    if parts > 1:
        schedule.split(outer, [parts, None])
    sums = [schedule.rfactor(lane, 0)]
    if parts > 1:
        sums.insert(0, schedule.rfactor(schedule.get_loops(sums[0])[0], 0))
        schedule.parallel(schedule.get_loops(sums[0])[0])
    for number, one in enumerate(sums):
        loops = schedule.get_loops(one)
        schedule.vectorize(loops[-1])
        start = schedule.decompose_reduction(one, loops[int(parts > 1 and number == 0)])
        schedule.vectorize(schedule.get_loops(start)[-1])
    schedule.annotate(schedule.get_sblock("root"), "schedule_rule", "None")
    return [schedule]
