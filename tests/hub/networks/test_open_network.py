"""Modules and exported programs as networks: what `open_network` exports, and what it leaves as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.sources import open_network


class Dropping(torch.nn.Module):
    """Another network in training than in inference."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return self.drop(x) if scale is None else self.drop(x) * scale


X = torch.ones(4, 4)


def test_a_module_is_exported_as_it_computes_in_inference_and_stays_as_it_was() -> None:
    module = Dropping().train()
    network = open_network(module, (X,))
    assert network.name == "Dropping"
    assert network.origin == "torch"
    assert torch.equal(network.module()(*network.inputs()), X)
    assert module.training
    assert module.drop.training
    assert torch.backends.mha.get_fastpath_enabled()
    frozen = Dropping().train()
    frozen.drop.eval()
    open_network(frozen, (X,))
    assert frozen.training
    assert not frozen.drop.training


def test_example_inputs_by_position_alone_or_by_name() -> None:
    for network in (
        open_network(Dropping(), X, {"scale": X}, name="mine"),
        open_network(Dropping(), None, {"x": X, "scale": X}, name="mine"),
    ):
        assert network.name == "mine"
        assert [spec.name for spec in network.signature().inputs] == ["x", "scale"]
    assert "scale=float32[4, 4]" in str(open_network(Dropping(), [X], {"scale": X}).signature())


def test_a_tensor_given_twice_is_two_inputs() -> None:
    """PyTorch itself would read one of them for both."""
    exported = open_network(Dropping(), (X, X)).export()
    assert torch.equal(exported.module()(X, X * 3), X * 3)


def test_an_exported_program_is_taken_as_it_is() -> None:
    program = torch.export.export(Dropping().eval(), (X,))
    network = open_network(program)
    assert network.export() is program
    assert network.name == "network"


class Branching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("source", "inputs", "message"),
    [
        (Dropping(), None, "needs example inputs"),
        (Dropping().to_empty(device="meta"), (X.to("meta"),), "on meta"),
        (Branching(), (X,), "PyTorch cannot export Branching: "),
        (42, None, "int is nothing that can be tuned"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_a_remedy(source: Any, inputs: Any, message: str) -> None:
    with pytest.raises(NetworkImportError, match=message) as refused:
        open_network(source, inputs)
    assert refused.value.remedy
    assert "\n" not in refused.value.message
