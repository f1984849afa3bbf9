"""Ansor's steps, read without the computation they belong to."""

from __future__ import annotations

import copy
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.primitives import (
    NONE,
    REST,
    ROOT,
    Primitive,
    PrimitiveSequence,
    TraceFormatError,
    from_ansor_steps,
    from_trace_json,
)

Tile = tuple[int, ...]


def gpu_matmul(
    rows: Tile = (2, 4, 2, 2), columns: Tile = (2, 32, 2, 1), inner: Tile = (4, 4), size: int = 1024, unroll: int = 512
) -> list[Any]:
    """C = A B as Ansor tiles it for a GPU: stages 0 and 1 are A and B, 2 is C."""
    return [
        ["CHW", 2, "local"],
        ["SP", 2, 0, size, list(rows), 1],
        ["SP", 2, 5, size, list(columns), 1],
        ["SP", 2, 10, size, list(inner), 1],
        ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]],
        ["FSP", 3, 0, 1, 3],
        ["FSP", 3, 4, 2, 3],
        ["RE", 3, [0, 4, 1, 5, 2, 6, 3, 7]],
        ["CA", 2, 3, 5],
        ["CHR", 1, "shared", [2]],
        ["CA", 2, 3, 6],
        ["CHR", 0, "shared", [3]],
        ["CA", 1, 4, 6],
        ["FU", 5, [0, 1]],
        ["AN", 5, 0, 5],
        ["FU", 5, [1, 2]],
        ["AN", 5, 1, 4],
        ["FU", 5, [2, 3]],
        ["AN", 5, 2, 6],
        ["FU", 3, [0, 1]],
        ["SP", 3, 0, 1024, [2], 1],
        ["AN", 3, 1, 2],
        ["FFSP", 3, 0, [2, 1], 1, 1],
        ["AN", 3, 1, 6],
        ["PR", 4, 0, f"auto_unroll_max_step${unroll}"],
    ]


def lines(steps: list[Any]) -> list[str]:
    return str(from_ansor_steps(steps)).splitlines()


def test_a_gpu_matmul_is_told_step_by_step() -> None:
    assert lines(gpu_matmul()) == [
        "CacheWrite(0, 0, local)",  # block 0 computes on, block 1 copies its result
        "Split(0, 0, 1024, 32, 2, 4, 2, 2)",
        "Split(0, 5, 1024, 8, 2, 32, 2, 1)",
        "Split(0, 10, 1024, 64, 4, 4)",
        "Reorder(0, 0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9)",
        "Split(1, 0, 1024, 32, 2, 4, 4)",
        "Split(1, 4, 1024, 8, 2, 32, 2)",
        "Reorder(1, 0, 4, 1, 5, 2, 6, 3, 7)",
        "ComputeAt(0, 5, 1)",
        "CacheRead(0, 1, 0, shared)",  # block 2: the copy of B, the second of the two that are read
        "ComputeAt(2, 6, 0)",
        "CacheRead(0, 0, 0, shared)",  # block 3: the copy of A
        "ComputeAt(3, 6, 0)",
        "Fuse(1, 0, 1)",
        "Bind(1, 0, 256, blockIdx.x)",
        "Fuse(1, 1, 2)",
        "Bind(1, 1, 4, vthread.x)",
        "Fuse(1, 2, 3)",
        "Bind(1, 2, 128, threadIdx.x)",
        "Fuse(2, 0, 1)",
        "Split(2, 0, 1024, 512, 2)",
        "Vectorize(2, 1, -1)",
        "Split(2, 0, 512, 4, 128)",  # as many as there are threads
        "Bind(2, 1, 128, threadIdx.x)",
        "Unroll(0, 0, 512, explicit)",
    ]


def test_metaschedule_tells_the_same_tiling_in_the_same_words() -> None:
    insts = [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
        ["SamplePerfectTile", ["l1"], [5, 64], ["v4", "v5", "v6", "v7", "v8"]],
        ["Split", ["l1", "v4", "v5", "v6", "v7", "v8"], [1, 0], ["l9", "l10", "l11", "l12", "l13"]],
        ["SamplePerfectTile", ["l2"], [5, 64], ["v14", "v15", "v16", "v17", "v18"]],
        ["Split", ["l2", "v14", "v15", "v16", "v17", "v18"], [1, 0], ["l19", "l20", "l21", "l22", "l23"]],
        ["SamplePerfectTile", ["l3"], [3, 64], ["v24", "v25", "v26"]],
        ["Split", ["l3", "v24", "v25", "v26"], [1, 0], ["l27", "l28", "l29"]],
        [
            "Reorder",
            ["l9", "l19", "l10", "l20", "l11", "l21", "l27", "l28", "l12", "l22", "l29", "l13", "l23"],
            [],
            [],
        ],
        ["Fuse", ["l9", "l19"], [1], ["l30"]],
        ["Bind", ["l30"], ["blockIdx.x"], []],
        ["Fuse", ["l10", "l20"], [1], ["l31"]],
        ["Bind", ["l31"], ["vthread.x"], []],
        ["Fuse", ["l11", "l21"], [1], ["l32"]],
        ["Bind", ["l32"], ["threadIdx.x"], []],
        ["CacheWrite", ["b0"], [0, "local"], ["b33"]],
        ["ReverseComputeAt", ["b33", "l32"], [1, -1], []],
        ["CacheRead", ["b0", ["b0"]], [0, "shared"], ["b34"]],
        ["ComputeAt", ["b34", "l27"], [1, -1], []],
        ["CacheRead", ["b0", ["b0"]], [1, "shared"], ["b35"]],
        ["ComputeAt", ["b35", "l27"], [1, -1], []],
    ]
    theirs = from_trace_json([insts, [[2, [32, 2, 4, 2, 2]], [4, [8, 2, 32, 2, 1]], [6, [64, 4, 4]]]])
    ours = from_ansor_steps(gpu_matmul())

    def told(sequence: PrimitiveSequence, *kinds: str, skip: int = 0) -> set[tuple[Any, ...]]:
        """What is said of the block that computes; without its number where another block stands for it."""
        named = (n for p in sequence if p.kind in kinds for n in [(p.kind, p.numbers[skip:], p.names)])
        return {(kind, numbers, tuple(n for n in names if n[0] != "@")) for kind, numbers, names in named}

    for kinds, skip in ((("Reorder", "CacheRead", "CacheWrite"), 0), (("Fuse", "Bind"), 1)):
        assert told(theirs, *kinds, skip=skip) <= told(ours, *kinds, skip=skip)
    assert told(theirs, "Split") <= told(ours, "Split")


def test_a_crop_at_any_length_is_the_crop_of_the_sequence() -> None:
    steps, whole = gpu_matmul(), from_ansor_steps(gpu_matmul()).primitives
    for length in range(12, len(steps) + 1):  # before, the second copy is not known yet
        assert from_ansor_steps(steps[:length]).primitives == whole[:length]
    for length in range(12):
        assert len(from_ansor_steps(steps[:length])) == length


def tile(parts: int) -> st.SearchStrategy[Tile]:
    return st.tuples(*[st.integers(1, 9)] * parts)


@given(tile(4), tile(4), tile(2), st.integers(1, 4000))
def test_factors_cover_the_extent_and_waste_less_than_one_tile(
    rows: Tile, columns: Tile, inner: Tile, size: int
) -> None:
    for primitive in from_ansor_steps(gpu_matmul(rows, columns, inner, size)):
        if primitive.kind == "Split":
            extent, factors = primitive.numbers[2], primitive.numbers[3:]
            assert extent > 0
            assert extent <= prod(factors) < extent + prod(factors[1:])


@given(tile(4), tile(4), tile(2))
def test_every_loop_is_accounted_for(rows: Tile, columns: Tile, inner: Tile) -> None:
    """Splits add loops and fusions take them; orders, threads and locations name loops that exist."""
    loops: dict[int, int] = {0: 3, 1: 2, 2: 2, 3: 2}
    for p in from_ansor_steps(gpu_matmul(rows, columns, inner)):
        if p.kind == "Split":
            loops[p.numbers[0]] += len(p.numbers) - 4
        elif p.kind == "Fuse":
            loops[p.numbers[0]] -= len(p.numbers) - 2
        elif p.kind == "Reorder":
            assert len(p.numbers) - 1 == loops[p.numbers[0]]
        elif p.kind == "Bind":
            assert p.numbers[1] < loops[p.numbers[0]]
        elif p.kind == "ComputeAt":
            assert p.numbers[1] < loops[p.numbers[2]]
    assert loops == {0: 13, 1: 5, 2: 3, 3: 2}


def test_unknown_extents_are_zero_until_told() -> None:
    assert lines([["FU", 1, [0, 1]], ["SP", 1, 0, 0, [8], 1], ["AN", 1, 0, 5], ["AN", 1, 1, 6]]) == [
        "Fuse(0, 0, 1)",
        f"Split(0, 0, 0, {REST}, 8)",
        "Bind(0, 0, 0, blockIdx.x)",
        "Bind(0, 1, 8, threadIdx.x)",
    ]


def test_a_fused_extent_serves_the_split_that_does_not_tell_its_own() -> None:
    steps = [["SP", 0, 0, 12, [4], 1], ["FU", 0, [0, 1]], ["SP", 0, 0, 0, [6], 1]]
    assert lines(steps)[-1] == "Split(0, 0, 12, 2, 6)"


def test_lengths_from_the_outside_leave_the_rest_to_the_innermost() -> None:
    assert lines([["SP", 0, 0, 20, [3], 0]]) == ["Split(0, 0, 20, 3, 7)"]


def test_where_a_stage_is_computed_changes_its_extents() -> None:
    steps = [["SP", 0, 0, 12, [4], 1], ["CA", 0, 1, 0], ["AN", 0, 0, 6]]
    assert lines(steps)[-1] == "Bind(0, 0, 0, threadIdx.x)"


@pytest.mark.parametrize("between", [[], [["CA", 1, 2, 0]]])
def test_stages_are_not_computed_at_each_other_in_a_circle(between: list[Any]) -> None:
    last = 1 + len(between)
    circle = [["CA", 0, 1, 0], *between, ["CA", last, 0, 0]]
    with pytest.raises(TraceFormatError, match="computed at itself"):
        from_ansor_steps(circle)
    assert len(from_ansor_steps([["CA", 0, 1, 0], *between, ["CR", 0], ["CA", last, 0, 0]])) == 3 + len(between)


def test_an_rfactor_puts_its_new_stage_first() -> None:
    steps = [
        ["SP", 2, 1, 9, [3], 1],
        ["RF", 2, 2, 1],
        ["CR", 3],
        ["AN", 2, 1, 2],  # stage 2 is the new one
        ["AN", 3, 1, 6],
    ]
    assert lines(steps) == [
        "Split(0, 1, 9, 3, 3)",
        "RFactor(0, 2, 1)",
        f"ComputeAt(0, {ROOT}, {NONE})",
        "Vectorize(1, 1, -1)",
        "Bind(0, 1, 3, threadIdx.x)",
    ]


def test_what_else_a_step_can_say() -> None:
    steps = [["CI", 3], ["AN", 1, 0, 0], ["AN", 1, 0, 1], ["AN", 1, 0, 3], ["AN", 1, 0, 8], ["AN", 1, 0, 11]]
    assert lines([*steps, ["SA", 1, 0, 32, 8], ["PR", 1, 0, "debug_skip_region"], ["FU", 4, []]]) == [
        "ComputeInline(0)",
        "Unroll(1, 0, -1)",
        "Parallel(1, 0, -1)",
        "Bind(1, 0, 0, threadIdx.y)",
        "Tensorize(1, 0, -1)",
        "StorageAlign(1, 0, 0, 32, 8)",
        "Annotate(1, 0, -1, pragma, debug_skip_region)",
        "Fuse(2)",
    ]


@pytest.mark.parametrize(
    "step",
    [
        [],
        "AN",
        ["AN", 0],
        ["AN", 0, 0, 12],
        ["AN", 0, -1, 5],
        ["AN", 10**9, 0, 5],
        ["AN", 0, 10**9, 5],
        ["AN", 0, 0.5, 5],
        ["SP", 0, 0, 16, [0], 1],
        ["SP", 0, 0, 16, [10**70], 1],
        ["SP", 0, 0, True, [4], 1],
        ["SP", 0, 0, 16, 4, 1],
        ["FSP", 0, 0, 7, 1],
        ["FSP", 0, 0, 0, 3],
        ["FFSP", 0, 0, [], 0, 1],
        ["FFSP", 0, 0, [0], 1, 1],
        ["FU", 0, [0, 2]],
        ["RE", 0, [0, 0]],
        ["RE", 0, [0]],
        ["CHR", 0, "shared", []],
        ["CHW", 0, 3],
        ["PR", 0, 0, 3],
        ["CA", 0, 0, 0],
    ],
)
def test_a_malformed_step_is_named(step: Any) -> None:
    with pytest.raises(TraceFormatError, match=r"instruction 1") as caught:
        from_ansor_steps([["SP", 0, 0, 16, [4], 1], step])
    assert caught.value.fields["index"] == 1
    assert caught.value.remedy


def test_an_unknown_code_and_no_steps_at_all() -> None:
    with pytest.raises(TraceFormatError, match="ZZ") as caught:
        from_ansor_steps([["ZZ", 0]])
    assert caught.value.fields["index"] == 0
    with pytest.raises(TraceFormatError, match="no list of steps"):
        from_ansor_steps({"i": []})  # pyright: ignore[reportArgumentType]


def test_a_stage_has_no_more_iterators_than_its_order_names() -> None:
    with pytest.raises(TraceFormatError, match="has none at 2"):
        from_ansor_steps([["RE", 0, [1, 0]], ["AN", 0, 2, 6]])


JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers()))


@given(st.data())
def test_damage_raises_nothing_but_format_errors(data: st.DataObject) -> None:
    steps = copy.deepcopy(gpu_matmul())
    step = data.draw(st.sampled_from(steps))
    step[data.draw(st.integers(0, len(step) - 1))] = data.draw(JUNK)
    try:
        sequence = from_ansor_steps(steps)
    except TraceFormatError:
        return
    assert PrimitiveSequence.from_json(sequence.to_json()) == sequence


def test_equal_primitives_are_one_object() -> None:
    first, second = (from_ansor_steps(gpu_matmul()).primitives for _ in range(2))
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert isinstance(first[0], Primitive)
