"""A network compiled without tuning, beside PyTorch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from relax_kit import compute
from tchub.hub.networks import LAYOUTS
from tchub.hub.networks.frontend.network import import_exported
from tchub.hub.networks.transform.prepare import prepare
from torch import Tensor, nn


class Computed(nn.Module):
    """A function and the modules that it uses, as a network."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*self.parts, *inputs)


@pytest.fixture
def equal() -> Callable[..., None]:
    """Compile a module for some inputs, and assert that every output has PyTorch's shape, type and numbers."""

    def check(
        module: nn.Module | Callable[..., Any],
        *inputs: Tensor,
        parts: tuple = (),
        layout: str = LAYOUTS[0],
        again: bool = False,
    ) -> None:
        """Again: of a program that PyTorch has decomposed before."""
        network = (module if isinstance(module, nn.Module) else Computed(module, *parts)).eval()
        with torch.no_grad():
            exported = torch.export.export(network, inputs)
            exported = exported.run_decompositions({}) if again else exported
            expected = [x.numpy() for x in torch.utils._pytree.tree_leaves(network(*inputs))]
        found = compute(prepare(import_exported(exported, "network"), layout), *inputs)
        assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in expected]
        for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            np.testing.assert_allclose(
                ours.astype("float64"), theirs.astype("float64"), 1e-3, 1e-5, err_msg=f"output {number}"
            )

    torch.manual_seed(0)
    return check
