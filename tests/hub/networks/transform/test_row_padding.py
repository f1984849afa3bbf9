"""Products over a number of rows that no tile divides are computed for a few more, and give what PyTorch gives."""

from typing import Any

import numpy as np
import pytest
import torch
from relax_kit import calls, compute
from tchub.hub.networks.transform.prepare import lower
from test_attention import imported, tasks_of
from torch import nn


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


@pytest.mark.parametrize(("rows", "norm"), [(197, None), (37, Scaled()), (257, None)])
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
def test_others_are_left_as_they_are(shape: tuple[int, ...]) -> None:
    graph = imported(nn.Linear(16, 32), torch.randn(shape))
    assert all(int(np.prod(rows)) == int(np.prod(shape[:-1])) for rows in rows_of_products(graph))


def test_a_slice_of_a_longer_tensor_is_not_computed_in_full(network_of: Any, equal: Any) -> None:
    module, x = network_of(lambda dense, x: dense(torch.exp(x[:, :23])), nn.Linear(16, 16)), torch.randn(1, 500, 16)
    graph = imported(module, x)
    assert rows_of_products(graph) == {(24,)}
    assert "(1, 500, 16)" not in "".join(line for line in graph.script().splitlines() if "exp" in line)
    equal(module, x)
