"""Models of one node of ONNX Runtime's own, and their comparison with what they are written as."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from tchub.hub.networks.frontend.onnx_fold import folded

Arrays = Mapping[str, np.ndarray]
Case = tuple[str, Arrays, Arrays, int, dict[str, Any]]
"""Operator, inputs, weights, number of outputs, attributes."""
OWN = "com.microsoft"
random = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return random.uniform(0.01, 0.02, shape).astype(np.float32)


def of_bytes(kind: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(kind)
    return random.integers(limits.min, limits.max + 1, shape).astype(kind)


def model_of(operator: str, given: Arrays, weights: Arrays, outputs: int, opset: int, domain: str, **facts: Any) -> Any:
    """A model of one node; `order` has the names of its inputs, else both mappings have, of which `-` means none."""
    unread = [f"unread{i}" for i in range(facts.pop("unread", 0))]
    names = ["" if name[0] == "-" else name for name in facts.pop("order", [*given, *weights])]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(operator, names, results + unread, domain=domain, **facts)
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in given.items()}
    graph = helper.make_graph(
        [node], "one",
        [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in given.items()],
        [onnx.ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(array, name) for name, array in weights.items() if name[0] != "-"],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(OWN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def run(model: Any, given: Arrays) -> list[Any]:
    options: Any = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(given)))


def check_written(case: Case, opset: int) -> None:
    """Assert that a node is written as operators of ONNX that compute the same."""
    operator, given, weights, outputs, facts = case
    model = model_of(operator, given, weights, outputs, opset, OWN, **facts)
    written = folded(model, {name: array.shape for name, array in given.items()}, "net")
    assert {node.domain for node in written.graph.node} == {""}
    for ours, theirs in zip(run(written, given), run(model, given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
        assert np.ptp(theirs) > 0.1
