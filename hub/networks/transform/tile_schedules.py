"""Design spaces of products of tiles, by tile or vector registers, and of what follows them element by element."""

from math import prod
from typing import Any

from ....zoo.tile_instructions import FACTORS, SIZES, Factors, register_instructions
from .elementwise import followers
from .tile_products import LANES, OF_DATA, VECTOR_PRODUCT, rule_of_tiles
from .tile_shapes import TILE

_MOST_TILES = 64  # of the inner loops


def tile_product(schedule: Any, block: Any) -> list[Any]:
    """Return the space of a product of tiles and what elementwise follows it: how many tiles share rows and columns."""
    register_instructions()
    stored = schedule.get_producers(block)  # none where rows are read where they lie
    own = schedule.get(block).name_hint
    chain = [one for one in followers(schedule, block) if schedule.get(one).name_hint != own]
    if not chain:
        return [schedule]
    *inlined, last = chain
    for one in inlined:
        schedule.compute_inline(one)
    factors = factors_of_block(schedule.get(block))
    written = schedule.cache_write(block, 0, factors.scope)
    *images, m, n, i, j, k = schedule.get_loops(block)
    grid = [1, *(int(schedule.get(loop).extent) for loop in (*images, m))]
    (row, in_row), (column, in_column), (term, in_term) = (
        schedule.split(loop, [None, size]) for loop, size in ((m, factors.rows), (n, TILE), (k, factors.terms))
    )
    rows, more_rows = schedule.split(row, schedule.sample_perfect_tile(row, 2, _MOST_TILES))
    parts = [schedule.split(one, schedule.sample_perfect_tile(one, 2, _MOST_TILES)) for one in images]
    outer, inner = [one for one, _ in parts], [one for _, one in parts]
    columns, more_columns = schedule.split(column, schedule.sample_perfect_tile(column, 2, _MOST_TILES))
    schedule.reorder(*outer, rows, columns, *inner, more_rows, more_columns, i, j, term, in_row, in_column, in_term)
    rows = schedule.fuse(*outer, rows) if outer else rows
    schedule.reverse_compute_at(written, more_columns, preserve_unit_loops=True)
    *outer, width = (int(schedule.get(loop).extent) for loop in schedule.get_loops(last))
    alone = prod(int(schedule.get(loop).extent) for loop in (i, j)) == 1
    # Each row is one of the products', or each pixel one of those of a row of the image.
    by_rows = (alone and prod(outer) == max(outer)) or outer == grid
    if by_rows:
        schedule.reverse_compute_at(last, rows if width % TILE else more_columns, preserve_unit_loops=True)
    else:
        schedule.parallel(schedule.fuse(*schedule.get_loops(last)[:-1]))
    vectorise(schedule, last)
    for one in stored:
        _copy(schedule, one, rows if alone and not factors.lanes else None)
    # Threads share columns, too, which `share_columns` sees to for tile registers.
    schedule.parallel(schedule.fuse(rows, columns) if factors.lanes and not (by_rows and width % TILE) else rows)
    _on_registers(schedule, block, written, (i, in_row), factors.add, factors)
    schedule.annotate(schedule.get_sblock("root"), "schedule_rule", "None")
    return [schedule]


def _copy(schedule: Any, stored: Any, loop: Any) -> None:
    """Copy data to tiles below a loop, or all of them before.

    Args:
        loop: None for the latter.
    """
    for padded in schedule.get_producers(stored):
        schedule.parallel(schedule.fuse(*schedule.get_loops(padded)[:2]))
    if loop is not None:
        schedule.compute_at(stored, loop, preserve_unit_loops=True)
    else:
        schedule.parallel(schedule.fuse(*schedule.get_loops(stored)[:-1]))
    lanes, (*_, numbers) = schedule.get(stored).annotations.get(LANES), schedule.get_loops(stored)
    schedule.vectorize(schedule.split(numbers, [None, int(lanes)])[1] if lanes else numbers)


def vectorise(schedule: Any, block: Any) -> None:
    """Vectorise the last loop of a block where it has whole vectors; else LLVM finds them."""
    loop = schedule.get_loops(block)[-1]
    lanes = next((lanes for lanes in (TILE, TILE // 2) if int(schedule.get(loop).extent) % lanes == 0), 0)
    if lanes:
        schedule.vectorize(schedule.split(loop, [None, lanes])[1])


def factors_of_block(block: Any) -> Factors:
    """Return the factors that a product's block reads."""
    rule = rule_of_tiles(block).removesuffix(OF_DATA)
    if rule.startswith(VECTOR_PRODUCT):
        return SIZES[rule.removeprefix(VECTOR_PRODUCT)][0]
    types = {str(region.source.dtype) for region in block.reads}
    return next(one for one in FACTORS if one.data in types)


def in_tiles(schedule: Any, block: Any, factors: Factors) -> None:
    """Compute a product of data below a loop by tiles, those of a column after each other."""
    written = schedule.cache_write(block, 0, factors.scope)
    *_, rows, column, depth = schedule.get_loops(block)
    (row, in_row), (column, in_column), (term, in_term) = (
        schedule.split(loop, [None, size])
        for loop, size in ((rows, factors.rows), (column, TILE), (depth, factors.terms))
    )
    schedule.reorder(column, row, term, in_row, in_column, in_term)
    schedule.reverse_compute_at(written, row, preserve_unit_loops=True)
    _on_registers(schedule, block, written, (term, in_row), factors.add_computed, factors)


def _on_registers(schedule: Any, block: Any, written: Any, loops: tuple[Any, Any], add: str, factors: Factors) -> None:
    """Compute sums of products in the registers, and store them.

    Args:
        block: the sums; written: what stores them.
        loops: the outermost one over the terms, and the outer one of the three of a tile.
        add: name of the instruction that adds a tile's products.
    """
    outer, in_row = loops
    start = schedule.decompose_reduction(block, outer)
    schedule.tensorize(in_row, add)
    if not factors.lanes:
        schedule.tensorize(schedule.get_loops(start)[-2], factors.clear)
        schedule.tensorize(schedule.get_loops(written)[-2], factors.store)
        return
    for one in (start, written):  # by constant indices, or LLVM keeps the sums in memory
        *_, row, column = schedule.get_loops(one)
        vector, lane = schedule.split(column, [None, factors.lanes])
        schedule.vectorize(lane)
        schedule.unroll(vector)
        schedule.unroll(row)
