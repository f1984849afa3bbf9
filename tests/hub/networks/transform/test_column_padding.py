"""Products over a number of columns that no vector register divides are computed for a few more, and cut again."""

from typing import Any

import pytest
import torch
from relax_kit import calls
from tchub.hub.networks.frontend.network import import_exported
from tchub.hub.networks.transform.column_padding import whole_columns
from tchub.hub.networks.transform.prepare import for_inference, lower
from test_attention import imported, tasks_of
from torch import nn


def columns_of_products(graph: Any) -> list[int]:
    return [int(one.ty.shape[-1]) for one in calls(graph, "matmul")]


@pytest.mark.parametrize(
    ("columns", "lanes", "expected"),
    [
        *[(50257, 16, 50272), (1000, 16, 1008), (92, 16, 96), (72, 16, 80), (84, 16, 96), (64, 16, 64), (40, 16, 40)],
        *[(50257, 8, 50264), (1000, 8, 1000), (92, 8, 96), (36, 8, 40), (20, 8, 20), (1001, 4, 1004)],
    ],
)
def test_a_product_has_whole_registers_of_columns_where_few_are_added(columns: int, lanes: int, expected: int) -> None:
    assert whole_columns(columns, lanes) == expected
    exported = torch.export.export(nn.Linear(48, columns), (torch.randn(16, 48),))
    graph = for_inference(import_exported(exported, "network"), lanes=lanes)
    assert columns_of_products(graph) == [expected]


def test_classes_of_tokens_become_probabilities_by_lanes(network_of: Any, equal: Any) -> None:
    """The added columns have no share in a softmax, and are cut once, behind it."""
    network = network_of(
        lambda dense, x: torch.softmax(torch.relu(dense(x) / 0.7).view(8, 5, 101), -1), nn.Linear(64, 101)
    )
    x = torch.randn(1, 40, 64)
    graph = imported(network, x)
    assert columns_of_products(graph) == [112]
    assert len(calls(graph, "strided_slice")) == 1
    assert len(calls(graph, "nn.softmax")) == 0
    equal(network, x)


@pytest.mark.parametrize(
    "rest",
    [
        lambda x: torch.log(torch.exp(x).sum(-1)),
        lambda x: torch.log(x.abs() + 0.1),
        lambda x: x / (x.square() + 1) + torch.linspace(1, 2, 101),
        lambda x: torch.linspace(1, 2, 101) / (x.sigmoid() + x.exp()),
        lambda x: (x * torch.linspace(1, 2, 101) / torch.linspace(1, 2, 101)).max(-1),
        lambda x: (x[..., 3:90] + x[..., 14:], x[..., -40:].mean(-1), x.argmax(-1)),
        lambda x: torch.softmax(x, 0) @ x.transpose(0, 1),
        lambda x: x.reshape(-1)[torch.arange(5) * 100 + 99],
    ],
    ids=["a sum", "a logarithm", "quotients", "a constant's quotient", "constants", "slices", "rows meet", "reshaped"],
)
def test_what_follows_sees_the_columns_that_there_are(rest: Any, network_of: Any, equal: Any) -> None:
    network, x = network_of(lambda dense, x: rest(dense(x)), nn.Linear(64, 101)), torch.randn(40, 64)
    assert columns_of_products(imported(network, x))[0] == 112
    equal(network, x)


def test_rows_and_columns_are_added_to_one_product(network_of: Any, equal: Any) -> None:
    network, x = network_of(lambda dense, x: torch.relu(dense(x)) + 1, nn.Linear(64, 101)), torch.randn(37, 64)
    (product,) = calls(imported(network, x), "matmul")
    assert tuple(map(int, product.ty.shape)) == (40, 112)
    equal(network, x)


def test_weights_of_two_products_are_lengthened_once(network_of: Any, equal: Any) -> None:
    network = network_of(lambda dense, x, y: (dense(x), dense(y)), nn.Linear(64, 101, bias=False))
    x, y = torch.randn(40, 64), torch.randn(20, 64)
    first, second = calls(imported(network, x, y), "matmul")
    assert first.args[1].value.data_ptr() == second.args[1].value.data_ptr()
    equal(network, x, y)


@pytest.mark.parametrize(
    ("depth", "rows"), [(64, 8), (32, 40)], ids=["few rows read weights once", "a cut would cost what is saved"]
)
def test_others_are_left_as_they_are(depth: int, rows: int) -> None:
    assert columns_of_products(imported(nn.Linear(depth, 101), torch.randn(rows, depth))) == [101]


@pytest.mark.parametrize("size", [1, 3])
def test_channels_of_an_image_are_columns(size: int, network_of: Any, equal: Any) -> None:
    """As the 9 x 91 scores of RetinaNet; the cut is part of the kernel that puts the channels first again."""
    network = network_of(lambda conv, x: torch.sigmoid(conv(x)), nn.Conv2d(64, 91, size, padding=size // 2))
    x = torch.randn(1, 64, 7, 6)
    graph = imported(network, x)
    (product,) = calls(graph, "matmul" if size == 1 else "nn.conv2d")
    assert int(product.ty.shape[-1]) == 96
    assert not [task.name for task in tasks_of(lower(graph)) if task.name.startswith("strided_slice")]
    equal(network, x)
