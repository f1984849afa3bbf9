"""Functions without a schedule: their sums are computed row by row, over any number of columns, as they were."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tchub.hub.device.jobs import open_library
from tchub.hub.networks.library import build_library
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.transform.default_schedules import default_schedules
from tchub.hub.networks.transform.prepare import prepare
from torch import nn
from tvm import relax
from tvm.s_tir import Schedule
from tvm_ffi import structural_equal

NETWORKS = {
    "rows that lanes divide": (nn.Sequential(nn.Linear(48, 96), nn.ReLU()), (24, 48)),
    "a prime number of columns": (nn.Linear(48, 37), (24, 48)),
    "a convolution with what follows it": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU()),
        (1, 3, 12, 12),
    ),
    "a norm and a softmax": (nn.Sequential(nn.LayerNorm(64), nn.Softmax(-1)), (2, 160, 64)),
    "maxima": (nn.MaxPool2d(3, 2, 1), (1, 8, 40, 40)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_the_same(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, shape = NETWORKS[name]
    module, x = module.eval(), torch.randn(shape)
    mod = prepare(open_network(module, [x]).imported())
    kernels = [f for f in default_schedules(mod).functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert any("T.parallel" in one.script() for one in kernels)
    build_library(mod, tvm.target.Target("llvm"), None, path := tmp_path / "network.so")
    device: Any = tvm.cpu()
    main = relax.VirtualMachine(open_library(path, None), device)["main"]
    found = main(tvm.runtime.tensor(x.numpy()))
    with torch.no_grad():
        expected = module(x).numpy()
    np.testing.assert_allclose((found if hasattr(found, "numpy") else found[0]).numpy(), expected, 1e-4, 1e-5)


def test_a_function_that_a_search_has_scheduled_stays(small_task: Any) -> None:
    scheduled = Schedule(small_task.mod).mod["main"].with_attr("tirx.is_scheduled", True)
    mod = tvm.IRModule({"main": scheduled})
    assert structural_equal(default_schedules(mod), mod)
    assert not structural_equal(default_schedules(small_task.mod), small_task.mod)
