"""Small ONNX models for tests, and their comparison with ONNX Runtime."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from relax_kit import compute, prepare
from tchub.hub.networks.frontend.onnx_file import reference_module
from tchub.hub.networks.sources import open_network

Info, node = helper.make_tensor_value_info, helper.make_node
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = Info("x", FLOAT, [3, 4])
IMAGE = Info("x", FLOAT, [1, 3, 6, 6])
MATRIX = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")
Equal = Callable[..., Any]


def model(
    nodes: Sequence[Any],
    outputs: Mapping[str, int] | None = None,
    *,
    inputs: Sequence[Any] = (X,),
    opset: int = 17,
    functions: Sequence[Any] = (),
    **constants: Any,
) -> Any:
    """A model of nodes; `outputs` says how many axes they have."""
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    axes = {"y": len(inputs[0].type.tensor_type.shape.dim)} if outputs is None else outputs
    results = [Info(name, FLOAT, [None] * number) for name, number in axes.items()]
    graph = helper.make_graph(nodes, "graph", inputs, results, held)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def checker(tmp_path: Path) -> Equal:
    """Return a function that compiles a model, asserts that its outputs are ONNX Runtime's, and returns the network."""

    def check(proto: Any, atol: float = 1e-6) -> Any:
        path = tmp_path / "net.onnx"
        onnx.save(proto, path)
        network = open_network(path)
        results = compute(prepare(network.imported()), *network.inputs())
        for ours, theirs in zip(results, reference_module(path)(*network.inputs()), strict=True):
            assert ours.dtype == theirs.numpy().dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=atol)
        return network

    return check


def kernel(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-127, 127, shape).astype("int8")
