"""Operators that TVM cannot compile as they are imported: each compiles now, and is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tchub.hub.networks.library import build_library
from tchub.hub.networks.network import import_exported
from tchub.hub.networks.output_check import check_output
from tchub.hub.networks.prepare import LAYOUTS, prepare
from torch import nn


class Module(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


TOKENS = torch.randint(0, 5, (2, 9), generator=torch.Generator().manual_seed(0))
VALUES = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))

CASES: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "cumsum of a mask": (lambda x: (x != 1).cumsum(1), TOKENS),
    "cumsum of integers": (lambda x: x.cumsum(1), TOKENS),
    "equal masks": (lambda x: (x > 2) == (x < 4), TOKENS),
    "unequal masks": (lambda x: (x > 2) != (x < 4), TOKENS),
    "sort": (lambda x: x.sort(1), VALUES),
    "topk": (lambda x: x.topk(3), VALUES),
    "argsort": (lambda x: x.argsort(1), VALUES),
    "scatter": (lambda x: torch.zeros(2, 9).scatter(1, x.argsort(1), x), VALUES),
    "gather": (lambda x: x.gather(1, x.argsort(1)), VALUES),
}


def run(module: nn.Module, x: torch.Tensor, target: Any, path: Path, layout: str = LAYOUTS[0]) -> str:
    """The verdict on the compiled module."""
    import tvm
    from tvm import relax

    mod = prepare(import_exported(torch.export.export(module.eval(), (x,)), "net"), layout)
    build_library(mod, target, None, path)
    ours = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"](tvm.runtime.tensor(x.numpy()))
    theirs = module(x)
    expected = [theirs] if isinstance(theirs, torch.Tensor) else list(theirs)
    return check_output([y.numpy() for y in ours], [y.detach().numpy() for y in expected]).verdict


@pytest.mark.parametrize("name", CASES)
def test_sorts_scans_and_masks_compile_and_are_right(name: str, target: Any, tmp_path: Path) -> None:
    function, x = CASES[name]
    assert run(Module(function), x, target, tmp_path / "net.so") == "equal"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_transposed_convolution_between_others_keeps_its_own_layout(layout: str, target: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 4, 2, 1, groups=2), nn.Conv2d(4, 2, 3))
    assert run(layers, torch.randn(1, 3, 10, 10), target, tmp_path / "net.so", layout) == "equal"
