"""Constant folding of exported programs: what PyTorch can compute once is not computed at every call."""

from typing import Any

import pytest
import torch
from relax_kit import calls, name_of
from tchub.hub.networks.frontend.constants import MOST_BYTES, fold_constants
from tchub.hub.networks.frontend.network import import_exported
from torch import nn
from torch.nn.utils.parametrizations import orthogonal


def folded(module: nn.Module, *x: torch.Tensor) -> tuple[Any, list[str]]:
    """The folded program, and the operators that are left in it."""
    program = torch.export.export(module.eval(), x).run_decompositions()
    before = set(program.constants)
    result = fold_constants(program)
    assert before <= set(result.constants)
    left = [str(node.target).split(".")[1] for node in result.graph.nodes if node.op == "call_function"]
    return result, left


class Rotary(nn.Module):
    """Tables of positions, a causal mask, and a parameter that looks positions up."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 1.0 / torch.arange(1.0, 5.0))
        self.table = nn.Embedding(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1])
        angles = positions[:, None] * self.frequencies
        mask = torch.full((8, 8), float("-inf")).triu(1)
        scores = x @ x.transpose(1, 2) + mask
        return scores.softmax(-1) @ (x * angles.cos() + self.table(positions))


def test_positions_masks_and_tables_are_folded_and_the_output_is_equal() -> None:
    torch.manual_seed(0)
    module, x = Rotary(), torch.randn(1, 8, 4)
    program, left = folded(module, x)
    assert not {"arange", "full", "cos", "ge", "where", "scalar_tensor"} & set(left)
    assert "embedding" in left, "parameters are left to TVM"
    program.graph_module.graph.lint()
    assert torch.equal(program.module()(x), module(x))


def test_a_program_that_it_was_decomposed_from_is_as_it_was() -> None:
    original = torch.export.export(Rotary().eval(), (torch.randn(1, 8, 4),))
    names = set(original.constants)
    fold_constants(original.run_decompositions())
    assert set(original.constants) == names


def test_random_operators_large_values_and_what_grows_beyond_the_bound_stay(network_of: Any) -> None:
    def noise(x: torch.Tensor) -> torch.Tensor:
        y = torch.ones(MOST_BYTES // 8)
        for _ in range(3):
            y = torch.cat([y, -y])
        return x + torch.rand(4) + torch.ones(MOST_BYTES // 4 + 1, 1).sum() + y.sum()

    _, left = folded(network_of(noise), torch.randn(4))
    assert {"rand", "full"} <= set(left)
    assert left.count("cat") == 2, "the first one has no more than the bound"


@pytest.mark.parametrize("way", ["matrix_exp", "cayley", "householder"])
def test_weights_that_pytorch_alone_can_compute_are_constants(way: str, equal: Any) -> None:
    network, x = nn.Sequential(orthogonal(nn.Linear(6, 6), orthogonal_map=way), nn.Linear(6, 3)), torch.randn(2, 6)
    equal(network, x)
    mod = import_exported(torch.export.export(network.eval(), (x,)), "network")
    assert {name_of(one) for one in calls(mod)} <= {"permute_dims", "matmul", "einsum", "add"}
