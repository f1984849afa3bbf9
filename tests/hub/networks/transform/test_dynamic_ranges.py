"""Scale and zero point of dynamically quantised data: one kernel, and what ONNX Runtime computes to the bit."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from onnx_kit import FLOAT, Info, model, node
from relax_kit import compute, functions, prepare, relax_of
from tchub.hub.networks.frontend.onnx_file import reference_module
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.transform.prepare import for_inference
from torch import nn

random = np.random.default_rng(0)
DATA = {
    "both signs": random.standard_normal((3, 37)),
    "whole vectors": random.standard_normal((2, 64)) - 0.5,
    "fewer than a vector": random.standard_normal((1, 5)),
    "parts for several cores, and a rest": random.standard_normal((70, 1001)),
    "no negative number": random.random((4, 33)) + 1,
    "no positive number": -random.random((4, 33)) - 1,
    "the least is in the rest": np.where(np.arange(35) == 34, -9.0, 1.0)[None],
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_the_range_is_found_by_one_kernel(tmp_path: Path, data: np.ndarray) -> None:
    x = data.astype(np.float32)
    proto = model([node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], {}, inputs=[Info("x", FLOAT, x.shape)])
    kinds = {"y": (TensorProto.UINT8, x.shape), "s": (FLOAT, []), "z": (TensorProto.UINT8, [])}
    proto.graph.output.extend(Info(name, *kind) for name, kind in kinds.items())
    onnx.save(proto, tmp_path / "net.onnx")
    imported = open_network(tmp_path / "net.onnx").imported()
    assert functions(for_inference(imported)) == {"dynamic_range"}
    assert functions(for_inference(imported, cpu=False)) == set()
    results = compute(prepare(imported), torch.from_numpy(x))
    for ours, theirs in zip(results, reference_module(tmp_path / "net.onnx")(torch.from_numpy(x)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Ranges(nn.Module):
    """Quotients of ranges that are others: of several data, of rows, and by another number."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        zero = torch.zeros(())
        of_two = (torch.maximum(x.max(), zero) - torch.minimum(y.min(), zero)) / 255
        of_rows = (torch.maximum(x.amax(1), zero) - torch.minimum(x.amin(1), zero)) / 255
        by_other = (torch.maximum(x.max(), zero) - torch.minimum(x.min(), zero)) / 127
        return of_two, of_rows, by_other


def test_other_quotients_stay_as_they_are() -> None:
    x, y = (torch.randn(3, 16) for _ in range(2))
    mod = relax_of(Ranges(), x, y)
    assert "dynamic_range" not in functions(for_inference(mod))
    for ours, theirs in zip(compute(prepare(mod), x, y), Ranges()(x, y), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
