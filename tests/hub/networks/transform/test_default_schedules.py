"""Functions without a schedule: their sums are computed row by row, over any number of columns, as they were."""

from typing import Any

import pytest
import torch
import tvm
from tchub.hub.networks.library import build_library
from tchub.hub.networks.transform.default_schedules import default_schedules
from torch import nn
from tvm.s_tir import Schedule
from tvm_ffi import structural_equal

CONVOLUTION = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU())
NETWORKS = {
    "rows that lanes divide": (nn.Sequential(nn.Linear(48, 96), nn.ReLU()), (24, 48)),
    "a prime number of columns": (nn.Linear(48, 37), (24, 48)),
    "a convolution with what follows it": (CONVOLUTION, (1, 3, 12, 12)),
    "a norm and a softmax": (nn.Sequential(nn.LayerNorm(64), nn.Softmax(-1)), (2, 160, 64)),
    "maxima": (nn.MaxPool2d(3, 2, 1), (1, 8, 40, 40)),
}


@pytest.mark.parametrize(("module", "shape"), NETWORKS.values(), ids=NETWORKS)
def test_a_network_computes_the_same(
    module: nn.Module, shape: tuple[int, ...], prepared: Any, run_library: Any, tmp_path: Any
) -> None:
    x = torch.randn(shape)
    mod = prepared(module, x)
    kernels = [f for f in default_schedules(mod).functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert any("T.parallel" in one.script() for one in kernels)
    build_library(mod, tvm.target.Target("llvm"), None, tmp_path / "network.so")
    (output,) = run_library(tmp_path / "network.so", x)
    torch.testing.assert_close(torch.from_numpy(output), module(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_function_that_a_search_has_scheduled_stays(small_task: Any) -> None:
    scheduled = Schedule(small_task.mod).mod["main"].with_attr("tirx.is_scheduled", True)
    mod = tvm.IRModule({"main": scheduled})
    assert structural_equal(default_schedules(mod), mod)
    assert not structural_equal(default_schedules(small_task.mod), small_task.mod)
