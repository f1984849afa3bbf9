"""Errors say where in the user's network an operator stands, and which line PyTorch cannot export."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.exported_file import export_module
from tchub.hub.networks.network import where_in_network
from tchub.hub.networks.sources import open_network


class Sums(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 1)  # the line


@pytest.mark.parametrize(
    "operator", ["aten.cumsum.default", "cumsum.default", "cumsum", "['cumsum.default']", "R.cumsum"]
)
def test_an_operator_is_found_by_module_and_line(operator: str) -> None:
    exported = torch.export.export(torch.nn.Sequential(torch.nn.Sequential(Sums()), Sums()), (torch.ones(2, 3),))
    place = where_in_network(exported, operator)
    assert place.startswith("0.0, test_blame.py:")
    assert place.endswith("return torch.cumsum(x, 1)  # the line and 1 more")
    decomposed = where_in_network(exported.run_decompositions(), operator)
    assert decomposed == place


class Branching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:  # decides by a value
            return x
        return -x


class Broken(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 7)


@pytest.mark.parametrize(
    ("module", "line", "remedy"),
    [(Branching(), "if x.sum() > 0", "torch.where or torch.cond"), (Broken(), "return x @", "torch.export.export")],
)
def test_what_cannot_be_exported_is_said_in_one_line_with_the_users_code(
    module: Any, line: str, remedy: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(NetworkImportError, match="PyTorch cannot export mine") as caught,
    ):
        export_module(module, (torch.ones(2, 3),), {}, "mine")
    assert "\n" not in str(caught.value)
    assert "test_blame.py:" in str(caught.value)
    assert line in str(caught.value)
    assert remedy in str(caught.value.remedy)
    assert logging.root.manager.disable == logging.NOTSET
    assert capsys.readouterr() == ("", "")


class RunningMaximum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cummax(x, 1).values


def test_an_operator_that_tvm_lacks_is_named_with_its_place() -> None:
    network = open_network(torch.nn.Sequential(torch.nn.ReLU(), RunningMaximum()), (torch.ones(2, 8),), name="mine")
    with pytest.raises(
        NetworkImportError, match=r"TVM cannot import mine: \S+ \(1, test_blame.py:\d+: return"
    ) as caught:
        network.imported()
    assert "torch.cummax(x, 1).values" in str(caught.value)
    assert "\n" not in str(caught.value)
