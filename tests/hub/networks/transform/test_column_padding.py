"""Products over rows or columns that no register or tile divides are computed for a few more, and cut again."""

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_kit import calls, compute, relax_of
from tchub.hub.networks import LAYOUTS
from tchub.hub.networks.alternatives import extract
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.tasks import network_tasks
from tchub.hub.networks.transform.column_padding import whole_columns
from tchub.hub.networks.transform.fused_depthwise import depthwise_convolutions
from tchub.hub.networks.transform.prepare import for_inference, lower
from tchub.hub.tuning.builds import first_build
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
def test_whole_registers_of_columns_where_few_are_added(columns: int, lanes: int, expected: int) -> None:
    assert whole_columns(columns, lanes) == expected


def test_classes_of_tokens_become_probabilities_by_lanes(network_of: Any, equal: Any) -> None:
    """The added columns have no share in a softmax, and are cut behind it."""
    network = network_of(
        lambda dense, x: torch.softmax(torch.relu(dense(x) / 0.7).view(8, 5, 101), -1), nn.Linear(64, 101)
    )
    x = torch.randn(1, 40, 64)
    graph = imported(network, x)
    assert columns_of_products(graph) == [112]
    assert len(calls(graph, "strided_slice")) == 1
    assert not calls(graph, "nn.softmax"), "which is a function of its own where its rows fill registers"
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


@pytest.mark.parametrize(("depth", "rows"), [(64, 8), (32, 40)], ids=["few rows read weights once", "short sums"])
def test_others_are_left_as_they_are(depth: int, rows: int) -> None:
    assert columns_of_products(imported(nn.Linear(depth, 101), torch.randn(rows, depth))) == [101]


@pytest.mark.parametrize(
    "rest",
    [lambda x: torch.exp(x + 100.0), lambda x: (x + 3e4).square() * 1e30, lambda x: x * 1e30 * 1e30],
    ids=["an exponential", "a square", "a factor"],
)
def test_what_added_columns_hold_does_not_matter_to_a_softmax(rest: Any, network_of: Any, equal: Any) -> None:
    """They are infinite where the columns that there are are not."""
    dense, x = nn.Linear(64, 101), torch.randn(40, 64)
    nn.init.constant_(dense.bias, -100.0 if rest(torch.zeros(1)).isinf() else 0.0)
    if float(rest(torch.full((1,), -100.0))) > 1e30:
        nn.init.constant_(dense.bias, -3e4)
    equal(network_of(lambda dense, x: torch.softmax(rest(dense(x)), -1), dense), x)


def assert_no_kernel_more(module: nn.Module, x: torch.Tensor) -> None:
    """Assert that a network calls as many tasks, each as often as it does, as without whole registers."""
    graph = relax_of(module, x)
    more, before = (tasks_of(lower(for_inference(graph, lanes=lanes))) for lanes in (16, 1))
    assert sum(task.weight for task in more) == sum(task.weight for task in before)


@pytest.mark.parametrize("size", [1, 3])
def test_channels_of_an_image_are_columns(size: int, network_of: Any, equal: Any) -> None:
    """As the 9 x 91 scores of RetinaNet; a longer product has no kernel more."""
    network = network_of(lambda conv, x: torch.sigmoid(conv(x)), nn.Conv2d(64, 91, size, padding=size // 2))
    x = torch.randn(1, 64, 7, 6)
    (product,) = calls(imported(network, x), "matmul" if size == 1 else "nn.conv2d")
    assert int(product.ty.shape[-1]) == 96
    assert_no_kernel_more(network, x)
    equal(network, x)


@pytest.mark.parametrize(
    "rest",
    [
        lambda x: x,
        lambda x: torch.softmax(x[..., :80], -1),
        lambda x: (torch.softmax(x / 2, -1), torch.softmax(x, -1)),
        lambda x: torch.softmax(x + x.mean(), -1),
        lambda x: torch.softmax(x.view(1, 8, 4, 101).transpose(1, 3), -1),
    ],
    ids=["alone", "some classes", "of two temperatures", "of what is computed", "of other rows"],
)
def test_a_cut_is_part_of_the_products_kernel(rest: Any, network_of: Any, equal: Any) -> None:
    """Of a head, and of layers in a residual block before it."""

    def forward(up: nn.Module, down: nn.Module, head: nn.Module, x: torch.Tensor) -> Any:
        return rest(head(x + down(nn.functional.gelu(up(x)))))

    network = network_of(forward, nn.Linear(72, 152), nn.Linear(152, 72), nn.Linear(72, 101))
    x = torch.randn(1, 32, 72)
    assert columns_of_products(imported(network, x)) == [160, 80, 112]
    assert_no_kernel_more(network, x)
    equal(network, x)


def test_a_softmax_that_fills_registers_and_long_activations_add_no_kernel(network_of: Any, equal: Any) -> None:
    """A value that is used twice would be computed twice, and again for each use of that."""

    def squares(dense: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = dense(x)
        for _ in range(6):
            y = torch.relu(y * y - y)
        return torch.softmax(y, -1)

    network, x = network_of(squares, nn.Linear(64, 101)), torch.randn(20, 64)
    assert_no_kernel_more(network, x)
    classes = nn.Sequential(nn.Linear(64, 1000), nn.Softmax(-1))
    assert_no_kernel_more(classes, x)
    equal(classes, x)


@pytest.mark.parametrize("activation", [nn.Hardswish(), nn.SiLU()], ids=["hardswish", "silu"])
def test_a_product_that_a_depthwise_convolution_takes_in_keeps_its_columns(activation: nn.Module) -> None:
    block = nn.Sequential(nn.Conv2d(64, 120, 1), activation, nn.Conv2d(120, 120, 3, 1, 1, groups=120))
    graph = imported(block, torch.randn(1, 64, 56, 56))
    assert columns_of_products(graph) == [120]
    assert depthwise_convolutions(graph)


@pytest.mark.parametrize(("cpu", "columns"), [("haswell", 1000), ("skylake-avx512", 1008)])
def test_the_target_says_how_long_a_register_is(cpu: str, columns: int) -> None:
    """In the tasks that are tuned, and in the network that is compiled."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-pc-linux-gnu", "num-cores": 1})
    network = open_network(nn.Linear(64, 1000).eval(), [torch.randn(16, 64)])
    (task,) = extract(network, target)
    assert f"T.int64({columns})" in task.mod.script()
    first = first_build(network, target, LAYOUTS[0], None, None)
    assert [one.task_id for one in network_tasks(first.mod, target, "net")] == [task.task_id]


class Tokens(nn.Module):
    """Two residual layers of perceptrons over tokens, with norms, and parts that are split from one product.

    Args:
        norm: of the perceptrons' input.
    """

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.up, self.down = norm or nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.both = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(2):
            x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        left, right = self.both(x).split(16, dim=-1)
        mixed = torch.softmax(left, -1) * right
        return mixed.mean(dim=-2), x[..., :17, :], mixed


class Scaled(nn.Module):
    """The norm of T5 and of Llama, as transformers writes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rows_of_products(graph: Any) -> set[tuple[int, ...]]:
    return {tuple(map(int, one.ty.shape))[:-1] for one in calls(graph, "matmul")}


@pytest.mark.parametrize(("rows", "norm"), [(197, None), (37, Scaled())])
def test_a_network_of_tokens_computes_the_same(rows: int, norm: nn.Module | None) -> None:
    """What sums over the rows, or is an output, sees those that there are."""
    torch.manual_seed(0)
    module, x = Tokens(norm), torch.randn(1, rows, 16)
    graph = imported(module, x)
    ((more,),) = rows_of_products(graph)
    assert rows < more <= rows + 3
    for ours, theirs in zip(compute(lower(graph), x), module(x), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", [None, Scaled()], ids=["layer norm", "root of squares"])
def test_zeros_are_added_once_and_stay_out_of_the_products_kernels(norm: nn.Module | None) -> None:
    """The input of the first norm, and the tensor to which the first layer adds; MetaSchedule has a space for all."""
    graph = imported(Tokens(norm), torch.randn(1, 197, 16))
    names = {task.name: task.weight for task in tasks_of(lower(graph))}
    assert sum(weight for name, weight in names.items() if "pad" in name) == 2
    assert not any("pad" in name for name in names if "matmul" in name)


@pytest.mark.parametrize(
    "shape",
    [(1, 196, 16), (1, 13, 16), (4, 197, 16)],
    ids=["tiles divide the rows", "all rows are one tile", "of a batch"],
)
def test_other_rows_are_left_as_they_are(shape: tuple[int, ...]) -> None:
    graph = imported(nn.Linear(16, 32), torch.randn(shape))
    assert all(int(np.prod(rows)) == int(np.prod(shape[:-1])) for rows in rows_of_products(graph))


def test_a_slice_of_a_longer_tensor_is_not_computed_in_full(network_of: Any, equal: Any) -> None:
    module, x = network_of(lambda dense, x: dense(torch.exp(x[:, :23])), nn.Linear(16, 16)), torch.randn(1, 500, 16)
    graph = imported(module, x)
    assert rows_of_products(graph) == {(24,)}
    assert "(1, 500, 16)" not in "".join(line for line in graph.script().splitlines() if "exp" in line)
    equal(module, x)
