"""One schedule, told by Ansor, AutoTVM and MetaSchedule: the same in the common language, as far as each can say it.

Ansor and MetaSchedule tile five levels deep where AutoTVM's templates tile four (the fifth is 1), and fuse the axes
of a level into one thread axis where AutoTVM binds each; neither is a difference between the programs.
"""

from itertools import count
from math import prod
from typing import Any

import pytest
from tchub.zoo.primitives import PrimitiveSequence, from_ansor_steps, from_autotvm, from_trace_json

Tile = tuple[int, ...]

# 1 x 16 x 16 x 16 images, 32 filters of 3 x 3, padding 1: loops n f y x and rc ry rx.
CONV_SPATIAL: list[Tile] = [(1, 1, 1, 1), (2, 2, 4, 2), (4, 1, 4, 1), (2, 1, 4, 2)]
CONV_REDUCED: list[Tile] = [(4, 4), (1, 3), (3, 1)]
# 64 x 128 times 128 x 64.
DENSE_SPATIAL: list[Tile] = [(4, 2, 4, 2), (2, 2, 4, 4)]
DENSE_REDUCED: list[Tile] = [(8, 4, 4)]
UNROLL = 512


def padded(tile: Tile, parts: int) -> list[int]:
    return [*tile, *[1] * (parts - len(tile))]


def ansor(spatial: list[Tile], reduced: list[Tile], stages: int, inputs: tuple[int, int]) -> PrimitiveSequence:
    """Ansor's multi-level tiling with shared and local caches; `inputs` are the stages that are read."""
    tiles = [padded(tile, 5) for tile in spatial] + [padded(tile, 3) for tile in reduced]
    at = stages - 1
    starts = [5 * i for i in range(len(spatial))] + [5 * len(spatial) + 3 * i for i in range(len(reduced))]
    s, r = starts[: len(spatial)], starts[len(spatial) :]
    levels = [(s, 0), (s, 1), (s, 2), (r, 0), (r, 1), (s, 3), (r, 2), (s, 4)]
    first, second = sorted(inputs)
    wide, at_output = len(spatial), [4 * i for i in range(len(spatial))]
    steps: list[Any] = [["CHW", at, "local"]]
    steps += [["SP", at, start, prod(tile), tile[1:], 1] for start, tile in zip(starts, tiles, strict=True)]
    steps += [["RE", at, [start + level for loops, level in levels for start in loops]]]
    steps += [["FSP", at + 1, 4 * i, 1 + i, 3] for i in range(wide)]
    steps += [["RE", at + 1, [start + level for level in range(4) for start in at_output]]]
    steps += [["CA", at, at + 1, 3 * wide - 1]]
    last_outer = 3 * wide + len(reduced) - 1
    steps += [["CHR", second, "shared", [at]], ["CA", second + 1, at + 1, last_outer]]
    steps += [["CHR", first, "shared", [at + 1]], ["CA", first + 1, at + 2, last_outer]]
    for position, axis in enumerate((5, 4, 6)):  # blockIdx.x, vthread.x, threadIdx.x
        steps += [["FU", at + 3, [position + i for i in range(wide)]], ["AN", at + 3, position, axis]]
    return from_ansor_steps([*steps, ["PR", at + 2, 0, f"auto_unroll_max_step${UNROLL}"]])


def metaschedule(name: str, spatial: list[Tile], reduced: list[Tile]) -> PrimitiveSequence:
    """MetaSchedule's rule of the same name."""
    number = count(1)

    def fresh(kind: str, many: int) -> list[str]:
        return [f"{kind}{next(number)}" for _ in range(many)]

    loops = fresh("l", len(spatial) + len(reduced))
    insts: list[Any] = [["GetSBlock", [], [name, "main"], ["b0"]], ["GetLoops", ["b0"], [], loops]]
    decisions, parts = [], []
    for loop, tile in zip(loops, [*spatial, *reduced], strict=True):
        levels = 5 if len(parts) < len(spatial) else 3
        sizes, parts_of = fresh("v", levels), fresh("l", levels)
        decisions.append([len(insts), padded(tile, levels)])
        insts.append(["SamplePerfectTile", [loop], [levels, 64], sizes])
        insts.append(["Split", [loop, *sizes], [1, 0], parts_of])
        parts.append(parts_of)
    s, r = parts[: len(spatial)], parts[len(spatial) :]
    order = [(s, 0), (s, 1), (s, 2), (r, 0), (r, 1), (s, 3), (r, 2), (s, 4)]
    insts.append(["Reorder", [axis[level] for axes, level in order for axis in axes], [], []])
    for level, axis in enumerate(("blockIdx.x", "vthread.x", "threadIdx.x")):
        (fused,) = fresh("l", 1)
        insts += [["Fuse", [part[level] for part in s], [1], [fused]], ["Bind", [fused], [axis], []]]
    copy, root = fresh("b", 2)
    insts += [["CacheWrite", ["b0"], [0, "local"], [copy]], ["ReverseComputeAt", [copy, fused], [1, -1], []]]
    for buffer in (0, 1):
        (load,) = fresh("b", 1)
        insts += [["CacheRead", ["b0", ["b0"]], [buffer, "shared"], [load]]]
        insts += [["ComputeAt", [load, r[-1][0]], [1, -1], []]]
    insts += [["GetSBlock", [], ["root", "main"], [root]]]
    insts += [["Annotate", [root, UNROLL], ["meta_schedule.unroll_explicit"], []]]
    return from_trace_json([insts, decisions])


def knob(name: str, tile: Tile) -> list[Any]:
    return [name, "sp", [-1, *tile[1:]]]


def autotvm_conv() -> PrimitiveSequence:
    names = ("tile_f", "tile_y", "tile_x", "tile_rc", "tile_ry", "tile_rx")
    tiles = [*CONV_SPATIAL[1:], *CONV_REDUCED]
    entity = [knob(name, tile) for name, tile in zip(names, tiles, strict=True)]
    entity += [["auto_unroll_max_step", "ot", UNROLL], ["unroll_explicit", "ot", 1]]
    tensors = [["TENSOR", [1, 16, 16, 16], "float32"], ["TENSOR", [32, 16, 3, 3], "float32"]]
    return from_autotvm("conv2d_nchw.cuda", [*tensors, 1, 1, 1, "float32"], entity)


def autotvm_dense() -> PrimitiveSequence:
    names = ("tile_x", "tile_y", "tile_k")
    entity = [knob(name, tile) for name, tile in zip(names, [*DENSE_SPATIAL, *DENSE_REDUCED], strict=True)]
    tensors = [["TENSOR", [64, 128], "float32"], ["TENSOR", [64, 128], "float32"]]
    return from_autotvm("dense_large_batch.cuda", [*tensors, None, "float32"], entity)


CONV = {
    "ansor": ansor(CONV_SPATIAL, CONV_REDUCED, 4, (1, 2)),
    "autotvm": autotvm_conv(),
    "metaschedule": metaschedule("conv2d_nchw", CONV_SPATIAL, CONV_REDUCED),
}
DENSE = {
    "ansor": ansor(DENSE_SPATIAL, DENSE_REDUCED, 3, (0, 1)),
    "autotvm": autotvm_dense(),
    "metaschedule": metaschedule("T_matmul_NT", DENSE_SPATIAL, DENSE_REDUCED),
}


def trim(tile: Tile) -> Tile:
    while tile and tile[-1] == 1:
        tile = tile[:-1]
    return tile


def grid(sequence: PrimitiveSequence) -> dict[str, int]:
    """Blocks, virtual threads and threads of the block that is spread over blocks."""
    binds = [p for p in sequence if p.kind == "Bind"]
    (spread,) = {p.numbers[0] for p in binds if p.names[0].startswith("blockIdx")}
    extents: dict[str, int] = {}
    for p in binds:
        if p.numbers[0] == spread:
            axis = p.names[0].partition(".")[0]
            extents[axis] = extents.get(axis, 1) * p.numbers[2]
    return extents


@pytest.mark.parametrize(
    ("programs", "tiles"), [(CONV, [*CONV_SPATIAL, *CONV_REDUCED]), (DENSE, [*DENSE_SPATIAL, *DENSE_REDUCED])]
)
def test_each_tells_every_tiling(programs: dict[str, PrimitiveSequence], tiles: list[Tile]) -> None:
    """As the extent and the factors of a split; levels of 1 at its end say nothing."""
    for sequence in programs.values():
        splits = {(p.numbers[2], trim(p.numbers[3:])) for p in sequence if p.kind == "Split"}
        assert {(prod(tile), trim(tile)) for tile in tiles} <= splits


@pytest.mark.parametrize(("programs", "spatial"), [(CONV, CONV_SPATIAL), (DENSE, DENSE_SPATIAL)])
def test_all_bind_the_same_threads(programs: dict[str, PrimitiveSequence], spatial: list[Tile]) -> None:
    levels = [prod(tile[level] for tile in spatial) for level in range(3)]
    expected = dict(zip(("blockIdx", "vthread", "threadIdx"), levels, strict=True))
    assert list(map(grid, programs.values())) == [expected] * 3
