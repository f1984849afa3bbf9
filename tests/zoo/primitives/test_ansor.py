"""Ansor's steps, read without the computation they belong to."""

from typing import Any

import pytest
from tchub.zoo.primitives import TraceFormatError, from_ansor_steps

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


@pytest.mark.parametrize("between", [[], [["CA", 1, 2, 0]]])
def test_stages_are_not_computed_at_each_other_in_a_circle(between: list[Any]) -> None:
    last = 1 + len(between)
    circle = [["CA", 0, 1, 0], *between, ["CA", last, 0, 0]]
    with pytest.raises(TraceFormatError, match="computed at itself"):
        from_ansor_steps(circle)
    assert len(from_ansor_steps([["CA", 0, 1, 0], *between, ["CR", 0], ["CA", last, 0, 0]])) == 3 + len(between)


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
        ["AN", 0, 0, 12],
        ["AN", 10**9, 0, 5],
        ["SP", 0, 0, 16, [10**70], 1],
        ["FSP", 0, 0, 7, 1],
        ["FU", 0, [0, 2]],
        ["RE", 0, [0, 0]],
        ["CA", 0, 0, 0],
        ["ZZ", 0],
    ],
)
def test_a_malformed_step_is_named(step: Any) -> None:
    with pytest.raises(TraceFormatError, match=r"instruction 1") as caught:
        from_ansor_steps([["SP", 0, 0, 16, [4], 1], step])
    assert caught.value.fields["index"] == 1
    assert caught.value.remedy


def test_what_is_no_list_of_steps_is_refused() -> None:
    with pytest.raises(TraceFormatError, match="no list of steps"):
        from_ansor_steps({"i": []})  # pyright: ignore[reportArgumentType]
