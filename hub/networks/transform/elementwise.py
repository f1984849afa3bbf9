"""Design spaces of functions that only move or combine elements: permutations, additions, activations, paddings.

MetaSchedule fuses all their loops and vectorises 64 elements of the one loop, so that each element's indices are
divided out of its number; a permutation is then ten times slower than memory, and nothing else is tried. Here the
loops stay, and which of the last two is innermost is measured. MetaSchedule finds the rule by the annotation
`schedule_rule` of the last block.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import IRModule
from tvm.ir import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, IntImm, IterVar, Var
from tvm_ffi import structural_hash, structural_map

from ...device.statements import flat_index, nodes_in

RULE = "tchub.elementwise"
_LANES = (16, 8)
# What a scattered element costs, over one that is written by itself; and one whose neighbours come next, over another.
_SCATTERED, _NEAR = 4.0, 0.6
# Elements that one thread moves before several have begun.
FEW = 1 << 16


def mark_elementwise(schedule: Any) -> bool:
    """Name the design space of a function without reductions; return whether it has one."""
    if (last := _last(schedule)) is None:
        return False
    schedule.annotate(last, "schedule_rule", RULE)
    return True


def inline_beside_sums(schedule: Any) -> bool:
    """Compute where it is read what only blocks behind a function's sums read; return whether there is any.

    As the bias that a dynamically quantised convolution rounds by the scale of its data. MetaSchedule does so itself,
    but not where a reshape has left its mark on an index; then it cannot schedule the function at all.
    """
    beside = _beside_sums(schedule)
    for block in beside:
        schedule.compute_inline(block)
    return bool(beside)


def _beside_sums(schedule: Any) -> list[Any]:
    """Return the elementwise blocks with indices that are computed, and are read behind sums alone."""
    blocks = blocks_of(schedule)
    # A pool whose windows differ in size has its sums in blocks within one.
    sums = [one for one in blocks if schedule.get(one).init is not None or nodes_in(schedule.get(one).body, SBlock)]
    before = {schedule.get(one).name_hint for block in sums for one in [block, *blocks_before(schedule, block)]}
    behind = {schedule.get(one).name_hint for one in blocks} - before
    beside = []
    for one in (one for one in blocks if schedule.get(one).name_hint in behind and schedule.get_consumers(one)):
        statement = schedule.get(one)
        follows = {schedule.get(other).name_hint for other in blocks_before(schedule, one)} & before
        indices = [index for load in nodes_in(statement.body, TensorLoad) for index in load.indices]
        plain = all(isinstance(index, Var | IntImm) for index in indices)
        if not (follows or plain or statement.annotations):
            beside.append(one)
    return beside


def is_of_blocks(func: Any) -> bool:
    """Return whether blocks are all that a function has, unlike a scan's or a scatter's, which are written by hand."""
    return isinstance(func.body, SBlockRealize) and func.body.block.name_hint == "root"


def blocks_in(func: Any) -> list[Any]:
    """Return all blocks of a function, its root among them."""
    return nodes_in(func.body, SBlock)


def extents_around(schedule: Any, block: Any) -> list[int]:
    """Return the extents of the loops around a block."""
    return [int(schedule.get(loop).extent) for loop in schedule.get_loops(block)]


def _last(schedule: Any) -> Any:
    """Return the block that writes the output of a function of elementwise blocks; None for another function."""
    blocks = blocks_of(schedule)
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
    return [one for one in blocks_of(schedule) if schedule.get(one).name_hint in names]


def followers(schedule: Any, block: Any) -> list[Any]:
    """Return a block, what follows it in its function, and what is elementwise beside them, the last block at the end.

    Empty where several are last.
    """
    names = {schedule.get(one).name_hint for one in blocks_before(schedule, block)}
    blocks = [one for one in blocks_of(schedule) if schedule.get(one).name_hint not in names]
    return blocks if sum(not schedule.get_consumers(one) for one in blocks) == 1 else []


def blocks_of(schedule: Any) -> list[Any]:
    """Return the blocks of a function, each behind those that it reads."""
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def elementwise(schedule: Any, block: Any) -> list[Any]:
    """Return the spaces of an elementwise function, one program each: which axes are innermost; the cheapest first."""
    for one in blocks_of(schedule)[:-1]:
        schedule.compute_inline(one)
    schedule.annotate(schedule.get_sblock("root"), "schedule_rule", "None")
    extents = extents_around(schedule, block)
    last = len(extents) - 1
    pairs = [(one, last) for one, extent in enumerate(extents[:-1]) if extent > 1]
    pairs += [(last, one) for one, _ in pairs]
    beside = [(around, axis) for around, axis in pairs if _lanes(extents[axis]) > 1]
    strides = strides_of(schedule.get(block))
    ways = sorted([(None, last), *beside], key=lambda way: _cost(strides, *way, _lanes(extents[way[1]])))
    return [_arranged(schedule.copy(), block, around, axis) for around, axis in ways]


def cheapest_first(mod: IRModule, spaces: Sequence[Any]) -> list[Any]:
    """Return the spaces of a function as `elementwise` orders them: MetaSchedule turns them with each rule that it has.

    Spaces of another function stay as they are.
    """
    schedule: Any = Schedule(mod)
    blocks = blocks_of(schedule) if is_of_blocks(mod["main"]) else []
    last = next(reversed(blocks), None)  # none in a kernel that is written by hand
    if last is None or schedule.get(last).annotations.get("schedule_rule") != RULE:
        return list(spaces)
    order = {structural_hash(one.mod): number for number, one in enumerate(elementwise(schedule, last))}
    return sorted(spaces, key=lambda space: order.get(structural_hash(space.mod), len(order)))


def strides_of(statement: Any) -> list[list[tuple[bool, int, bool]]]:
    """Return for each axis of a block what each access of its body does.

    Whether it writes, by how many elements it moves on when the axis does, and whether it is of the block's own result.
    """
    accesses, written = nodes_in(statement.body, TensorLoad, BufferStore), statement.writes[0].source

    def tensor_of(access: Any) -> Any:
        return access.buffer if isinstance(access, BufferStore) else access.source

    def offset(access: Any, moved: Any) -> int:
        def value(var: Any) -> Any:
            dtype = str(getattr(var.ty, "dtype", ""))
            return IntImm(dtype, int(var.same_as(moved))) if dtype.startswith("int") else var

        index = flat_index(access.indices, tensor_of(access).shape)
        number = Analyzer().simplify(structural_map(index, (Var, value)))
        return int(number) if isinstance(number, IntImm) else -1  # where a tensor says

    facts = [
        (one, isinstance(one, BufferStore), offset(one, None), tensor_of(one).same_as(written)) for one in accesses
    ]
    return [
        [(writes, offset(one, axis.var) - start, target) for one, writes, start, target in facts]
        for axis in statement.iter_vars
    ]


def _cost(strides: Sequence[Sequence[tuple[bool, int, bool]]], around: int | None, axis: int, lanes: int) -> float:
    """Return about what an element costs, see `_arranged` for the arguments.

    Vectors of elements side by side are cheap. Those that are gathered are not, less so where the loop around takes
    their neighbours; to scatter a vector takes longer than to write its elements one by one.
    """
    if lanes == 1:
        return float(len(strides[axis]))
    total = 0.0
    for number, (writes, stride, _) in enumerate(strides[axis]):
        near = around is not None and strides[around][number][1] == 1
        apart = (_SCATTERED if writes else 1.0) * (_NEAR if near else 1.0)
        total += 1 / lanes if stride in (0, 1) else apart
    return total


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
    if outer and prod(extents) > FEW:
        schedule.parallel(schedule.fuse(*outer))
    return schedule
