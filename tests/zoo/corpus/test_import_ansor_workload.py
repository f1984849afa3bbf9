"""What Ansor's workload keys compute: known functions, graphs guessed from shapes, and the rest."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tchub.zoo.corpus import computation
from tchub.zoo.corpus.importers.ansor import read_workload

HASH = "0123456789abcdef0123456789abcdef"


def conv2d(*sizes: int, stride: tuple[int, int] = (1, 1), kernel: tuple[int, int] = (3, 3)) -> str:
    return computation.conv2d(*sizes, kernel=kernel, stride=stride)


@pytest.mark.parametrize(
    ("key", "op", "flops", "text"),
    [
        (["conv2d_layer", 2, 16, 8, 8, 32, 3, 3, 2, "SAME"], "conv2d", 294912, conv2d(2, 16, 8, 8, 32, stride=(2, 2))),
        (["conv2d", 1, 8, 8, 32, 16, 3, 3, [1, 1], [0, 0]], "conv2d", 331776, conv2d(1, 16, 8, 8, 32)),
        (
            ["depthwise_conv2d_layer", 2, 16, 8, 8, 3, 3, 1, "VALID"],
            "depthwise",
            20736,
            computation.windowed("depthwise", 2, 16, 8, 8, (3, 3), (1, 1)),
        ),
        (
            ["pool_layer", "max", 2, 16, 8, 8, 2, 2, 2, 0],
            "pool",
            2048,
            computation.windowed("maxpool", 2, 16, 8, 8, (2, 2), (2, 2)),
        ),
        (["matmul_layer", 8, 64, 16], "matmul", 16384, computation.matmul(8, 16, 64)),
        (["reduction_layer", [8, 4, 4], [1, 2], False], "reduce", 128, computation.reduction([8, 4, 4], [1, 2])),
        (["relu_layer", 8, 4], "elementwise", 32, computation.elementwise([8, 4])),
    ],
)
def test_functions_are_known_by_name(key: list[Any], op: str, flops: float, text: str) -> None:
    found = read_workload(key)
    assert (found.op, found.flops, found.text) == (op, flops, text)


@pytest.mark.parametrize(
    ("shapes", "op", "flops", "text"),
    [
        ([[1, 8, 8, 16], [3, 3, 16, 32], [1, 1, 1, 32], [1, 8, 8, 32]], "conv2d", 589824, conv2d(1, 16, 8, 8, 32)),
        ([[1, 16, 8, 8], [4, 16, 3, 3, 8], [1, 32, 8, 8]], "conv2d", 589824, conv2d(1, 16, 8, 8, 32)),
        (  # a residual input comes first
            [[1, 24, 56, 56], [1, 144, 56, 56], [24, 144, 1, 1], [1, 24, 1, 1], [1, 24, 56, 56]],
            "conv2d",
            21676032,
            conv2d(1, 144, 56, 56, 24, kernel=(1, 1)),
        ),
        (
            [[1, 16, 8, 8], [16, 1, 3, 3], [1, 16, 8, 8]],
            "depthwise",
            18432,
            computation.windowed("depthwise", 1, 16, 8, 8, (3, 3), (1, 1)),
        ),
        ([[8, 64], [16, 64], [8, 16], [8, 16]], "matmul", 16384, computation.matmul(8, 16, 64)),
        ([[2, 8, 64], [2, 16, 64], [2, 8, 16]], "batch_matmul", 32768, computation.matmul(8, 16, 64, 2)),
    ],
)
def test_graphs_are_known_by_the_shapes_that_fit(shapes: list[list[int]], op: str, flops: float, text: str) -> None:
    found = read_workload([HASH, *shapes])
    assert (found.op, found.flops, found.text) == (op, flops, text)
    if len({len(shape) for shape in shapes}) == 1 and shapes[0] != [1, 24, 56, 56]:
        flat = read_workload([HASH, *[size for shape in shapes for size in shape]])
        assert (flat.op, flat.flops, flat.text) == (op, flops, text)


@pytest.mark.parametrize(
    "key", [[HASH], [HASH, [1, 1000], [1, 1000]], [HASH, 1, 1000, 1, 1000], ["my_op", 3], ["conv2d_layer", "SAME"]]
)
def test_what_is_not_known_is_other_and_keeps_its_name(key: list[Any]) -> None:
    found = read_workload(key)
    assert found.op == "other"
    assert math.isnan(found.flops)
    assert str(key[0]) in found.text
