"""Design spaces of functions that only move or combine elements: permutations, additions, activations, paddings.

MetaSchedule fuses all their loops and vectorises 64 elements of the one loop, so that each element's indices are
divided out of its number; a permutation is then ten times slower than memory, and nothing else is tried. Here the
loops stay, and which of the last two is innermost is measured. MetaSchedule finds the rule by the annotation
`schedule_rule` of the last block.
"""

from math import prod
from typing import Any

import tvm
from tvm import IRModule
from tvm.ir.transform import module_pass
from tvm.relax.analysis import has_reshape_pattern
from tvm.s_tir import Schedule
from tvm.s_tir.stmt import SBlockRealize
from tvm.tirx import IntImm, IterVar

RULE = "tchub.elementwise"
_LANES = (16, 8)
# Elements that one thread moves before several have begun.
_FEW = 1 << 16


def own_spaces() -> Any:
    """Return a pass that marks the functions without reductions, except reshapes, which cost nothing."""

    @module_pass(opt_level=0, name="TchubElementwiseSpaces")
    def run(mod: IRModule, _: Any) -> IRModule:
        mod = mod.clone()
        for var, func in mod.functions_items():
            if not isinstance(func, tvm.tirx.PrimFunc) or not is_of_blocks(func) or has_reshape_pattern(func):
                continue
            schedule: Any = Schedule(tvm.IRModule({"main": func}))
            if last := _last(schedule):
                schedule.annotate(last, "schedule_rule", RULE)
                mod[var] = schedule.mod["main"]
        return mod

    return run


def is_of_blocks(func: Any) -> bool:
    """Return whether blocks are all that a function has, unlike a scan's or a scatter's, which are written by hand."""
    return isinstance(func.body, SBlockRealize) and func.body.block.name_hint == "root"


def _last(schedule: Any) -> Any:
    """Return the block that writes the output of a function of elementwise blocks; None for another function."""
    blocks = _blocks(schedule)
    for block in blocks:
        inner = schedule.get(block)
        loops = [schedule.get(loop) for loop in schedule.get_loops(block)]
        spatial = all(int(var.iter_type) == IterVar.DataPar for var in inner.iter_vars)
        static = loops and all(isinstance(loop.extent, IntImm) for loop in loops)
        if not (spatial and static and inner.init is None) or inner.annotations:
            return None
    outputs = [block for block in blocks if not schedule.get_consumers(block)]
    return outputs[0] if len(outputs) == 1 and outputs[0] is blocks[-1] else None


def blocks_before(schedule: Any, block: Any) -> list[Any]:
    """Return the blocks that a block reads, directly or not, in the order in which they are computed."""
    names, pending = set[str](), [block]
    while pending:
        producers = schedule.get_producers(pending.pop())
        new = [one for one in producers if schedule.get(one).name_hint not in names]
        names |= {schedule.get(one).name_hint for one in new}
        pending += new
    return [one for one in _blocks(schedule) if schedule.get(one).name_hint in names]


def followers(schedule: Any, block: Any) -> list[Any]:
    """Return a block, what follows it in its function, and what is elementwise beside them, the last block at the end.

    Empty where several are last.
    """
    names = {schedule.get(one).name_hint for one in blocks_before(schedule, block)}
    blocks = [one for one in _blocks(schedule) if schedule.get(one).name_hint not in names]
    return blocks if sum(not schedule.get_consumers(one) for one in blocks) == 1 else []


def _blocks(schedule: Any) -> list[Any]:
    """Return the blocks of a function, each behind those that it reads."""
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def elementwise(schedule: Any, block: Any) -> list[Any]:
    """Return the spaces of an elementwise function, one program each: which axes are innermost."""
    for one in _blocks(schedule)[:-1]:
        schedule.compute_inline(one)
    schedule.annotate(schedule.get_sblock("root"), "schedule_rule", "None")
    extents = [int(schedule.get(loop).extent) for loop in schedule.get_loops(block)]
    last = len(extents) - 1
    pairs = [(one, last) for one, extent in enumerate(extents[:-1]) if extent > 1]
    pairs += [(last, one) for one, _ in pairs]
    beside = [(around, axis) for around, axis in pairs if _lanes(extents[axis]) > 1]
    return [_arranged(schedule.copy(), block, around, axis) for around, axis in [(None, last), *beside]]


def _lanes(extent: int) -> int:
    return next(lanes for lanes in (*_LANES, 1) if extent % lanes == 0)


def _arranged(schedule: Any, block: Any, around: int | None, axis: int) -> Any:
    """Return a schedule with lanes of an axis innermost.

    Args:
        around: axis of the loop around the lanes; None for the axis's own.
    """
    loops = schedule.get_loops(block)
    extents = [int(schedule.get(loop).extent) for loop in loops]
    outer = [loop for number, loop in enumerate(loops) if number not in (around, axis)]
    if (lanes := _lanes(extents[axis])) > 1:
        blocks, inner = schedule.split(loops[axis], [None, lanes])
        schedule.vectorize(inner)
        if around is not None:
            schedule.reorder(*outer, blocks, loops[around], inner)
        if around is not None or not outer:
            outer.append(blocks)
    if outer and prod(extents) > _FEW:
        schedule.parallel(schedule.fuse(*outer))
    return schedule
