"""Schedules of functions that no search has improved: loops in an order that a CPU runs well enough.

As TVM lowers an operator, the sum is its innermost loop, which LLVM does not vectorise: a network takes twenty times as
long, and so does the check of its output before anything is measured. Here the last axis of the result is innermost.
"""

from math import prod
from typing import Any

import tvm
from tvm import IRModule
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import IntImm, IterVar

from ....zoo.tile_instructions import SIZES
from .computed_products import product_of_data
from .elementwise import is_of_blocks
from .tile_attention import tile_attention
from .tile_products import ATTENTION, OF_DATA, PRODUCT, VECTOR_PRODUCT, rule_of_tiles
from .tile_schedules import tile_product

# Numbers of a row that are added up side by side, and multiply-adds that are worth a schedule.
_LANES, _WORTH_A_SCHEDULE = (64, 32, 16, 8), 1 << 12
_SEED = 1
_PRODUCTS = PRODUCT, *(f"{VECTOR_PRODUCT}{size}" for size in SIZES)
SPACES_OF_TILES = {
    ATTENTION: tile_attention,
    **dict.fromkeys(_PRODUCTS, tile_product),
    **dict.fromkeys((name + OF_DATA for name in _PRODUCTS), product_of_data),
}
"""What gives the design spaces of products of tiles, by the rule that their blocks name."""


def default_schedules(mod: IRModule) -> IRModule:
    """Return a module in which the sums and maxima of functions without a schedule are computed row by row.

    Products of tiles have some program of their space: element by element, they would take a thousand times as long.
    """
    mod = mod.clone()
    for var, function in mod.functions_items():
        of_blocks = isinstance(function, tvm.tirx.PrimFunc) and is_of_blocks(function)
        if of_blocks and not (function.attrs or {}).get("tirx.is_scheduled", False):
            mod[var] = _scheduled(function)
    return mod


def _scheduled(function: Any) -> Any:
    schedule: Any = Schedule(IRModule({"main": function}), seed=_SEED)
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
        for block in blocks:
            if rule := rule_of_tiles(schedule.get(block)):
                return SPACES_OF_TILES[rule](schedule, block)[0].mod["main"]
        for block in blocks:
            _by_rows(schedule, block)
    except ScheduleError:  # of a function of a form that no operator of today has
        return function
    return schedule.mod["main"]


def _by_rows(schedule: Any, block: Any) -> None:
    """Move the last axis of a reduction's result into its sums, in parts that fit registers where they divide it."""
    statement, loops = schedule.get(block), schedule.get_loops(block)
    extents = [schedule.get(loop).extent for loop in loops]
    kinds = [int(var.iter_type) for var in statement.iter_vars]
    if statement.init is None or len(loops) != len(kinds) or not all(isinstance(one, IntImm) for one in extents):
        return
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == IterVar.DataPar]
    sums = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == IterVar.CommReduce]
    if not spatial or not sums or prod(map(int, extents)) < _WORTH_A_SCHEDULE:
        return
    *outer, row = spatial
    extent = int(schedule.get(row).extent)
    if lanes := next((lanes for lanes in _LANES if extent % lanes == 0), 0):
        part, row = schedule.split(row, [None, lanes])
        outer.insert(0, part)  # whose weights stay in the cache
    schedule.reorder(*outer, *sums, row)
    if outer:
        schedule.parallel(schedule.fuse(*outer))
    if lanes:
        schedule.vectorize(row)
    schedule.decompose_reduction(block, sums[0])
