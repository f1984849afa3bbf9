"""Constant folding of exported programs: what PyTorch can compute once is not computed at every call."""

from __future__ import annotations

from typing import Any

import torch
from tchub.hub.networks.fold import MOST_BYTES, fold_constants
from torch import nn


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


def test_random_operators_and_large_values_stay() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            large = torch.ones(MOST_BYTES // 4 + 1, 1)
            return x + torch.rand(4) + large.sum()

    _, left = folded(Noise(), torch.randn(4))
    assert "rand" in left
    assert "full" in left
