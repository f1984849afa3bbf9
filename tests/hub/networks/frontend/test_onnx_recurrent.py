"""Recurrent layers of ONNX files: the same outputs as ONNX Runtime's, and what is left to the importer."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from onnxruntime.quantization import quantize_dynamic
from relax_kit import compute, prepare
from tchub.hub.networks.frontend.onnx_file import read_onnx, reference_module
from tchub.hub.networks.frontend.onnx_recurrent import imported, with_recurrences

STEPS, BATCH, FEATURES, HIDDEN = 4, 2, 3, 5
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(kind: str, direction: str = "forward", inputs: int = 8, batch_first: bool = False, **facts: Any) -> Any:
    """A model of one layer; `inputs`: how many the node has, of X, W, R, B, lengths, and initial states."""
    rng = np.random.default_rng(0)
    count, wide = 1 + (direction == "bidirectional"), GATES[kind] * HIDDEN
    states = (count, BATCH, HIDDEN)
    shapes = {"W": (count, wide, FEATURES), "R": (count, wide, HIDDEN), "B": (count, 2 * wide), "": (), "h": states}
    shapes |= {"c": states} if kind == "LSTM" else {}
    names = ["X", *list(shapes)[: inputs - 1]]
    arrays = {name: rng.standard_normal(shapes[name]).astype("float32") for name in names[1:] if name}
    turned = {name: arrays[name].swapaxes(0, 1).copy() for name in arrays.keys() & "hc" if batch_first}
    weights = [numpy_helper.from_array(array, name) for name, array in (arrays | turned).items()]
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    facts |= {"layout": 1} if batch_first else {}
    facts |= {name: each * count for name, each in facts.items() if name == "activations"}
    node = helper.make_node(kind, names, outputs, direction=direction, hidden_size=HIDDEN, **facts)
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["batch" if batch_first else "steps", None, FEATURES])
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * (4 - ("_" in name))) for name in outputs]
    graph = helper.make_graph([node], "net", [x], results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def run(model: Any, *inputs: np.ndarray) -> list[Any]:
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(zip(("X", "lengths"), inputs, strict=False))))


def compiled(model: Any, *inputs: np.ndarray) -> list[Any]:
    shapes = dict(zip(("X", "lengths"), (x.shape for x in inputs), strict=False))
    return compute(prepare(imported(with_recurrences(model, shapes), shapes)), *map(torch.from_numpy, inputs))


def with_lengths(model: Any, lengths: np.ndarray | None = None) -> Any:
    """Give a model's layer a length for each sequence: numbers, or an input where there are none."""
    model.graph.node[0].input[4] = "lengths"
    if lengths is None:
        model.graph.input.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, [BATCH]))
    else:
        model.graph.initializer.append(numpy_helper.from_array(lengths, "lengths"))
    return model


def assert_equal(ours: list[Any], right: list[Any]) -> None:
    for one, other in zip(ours, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def sequence() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((STEPS, BATCH, FEATURES)).astype("float32")


LBR = {"linear_before_reset": 1}
KINDS: list[tuple[str, dict[str, Any]]] = [("LSTM", {}), ("GRU", {}), ("GRU", LBR), ("RNN", {})]


@pytest.mark.parametrize(
    ("kind", "facts", "direction", "inputs"),
    [
        *((*kind, "bidirectional", 8) for kind in (*KINDS, ("RNN", {"activations": ["Relu"]}))),
        *((*kind, "forward", 3) for kind in KINDS[:3]),
        ("LSTM", {}, "reverse", 8),
    ],
)
def test_the_network_computes_what_the_layer_does(
    kind: str, facts: dict[str, Any], direction: str, inputs: int
) -> None:
    """Of weights alone, or with biases and states."""
    model, x = layer(kind, direction, inputs, **facts), sequence()
    assert_equal(compiled(model, x), run(model, x))


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_batch_first_is_the_same_with_its_axes_exchanged(kind: str) -> None:
    x = sequence()
    plain, turned = layer(kind, "bidirectional"), layer(kind, "bidirectional", batch_first=True)
    y, *states = compiled(turned, x.transpose(1, 0, 2).copy())
    assert_equal([y.transpose(1, 2, 0, 3), *(one.transpose(1, 0, 2) for one in states)], run(plain, x))


def test_what_is_not_known_is_left_and_the_file_stays_as_it_is() -> None:
    model, x = layer("LSTM"), sequence()
    before = model.SerializeToString()
    assert with_recurrences(model, {"X": x.shape}) is not model
    assert model.SerializeToString() == before
    for odd in (layer("RNN", activations=["Affine"]), layer("LSTM", clip=1.0), layer("LSTM", input_forget=1)):
        assert with_recurrences(odd, {"X": x.shape}) is odd


@pytest.mark.parametrize(
    ("kind", "facts", "direction"),
    [*((*kind, "bidirectional") for kind in KINDS), ("LSTM", {}, "forward"), ("GRU", LBR, "forward")],
)
def test_sequences_may_have_a_length_each(kind: str, facts: dict[str, Any], direction: str) -> None:
    """As PyTorch exports packed sequences: outputs behind the end are 0, and the last states are those before it."""
    inputs = 8 if direction == "forward" else 5  # with initial states
    model, x = with_lengths(layer(kind, direction, inputs, **facts)), sequence()
    for lengths in (np.array([STEPS, 2], np.int32), np.array([0, 3], np.int32)):
        assert_equal(compiled(model, x, lengths), run(model, x, lengths))


def test_lengths_of_all_steps_cost_nothing_and_states_behind_the_end_are_kept_only_where_they_can() -> None:
    x, full = sequence(), np.full(BATCH, STEPS, np.int32)
    written = [node.op_type for node in with_recurrences(layer("LSTM"), {"X": x.shape}).graph.node]
    whole = with_recurrences(with_lengths(layer("LSTM"), full), {"X": x.shape})
    assert [node.op_type for node in whole.graph.node] == written
    states = with_recurrences(with_lengths(layer("LSTM", "reverse"), full - 1), {"X": x.shape})
    assert [node.op_type for node in states.graph.node] == ["LSTM"]


def test_a_file_is_a_network_at_each_length_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "tagger.onnx"
    onnx.save(layer("LSTM", "bidirectional"), str(path))
    network = read_onnx(path, {"steps": [STEPS, STEPS + 3], "X.1": [BATCH]})
    for variant, steps in zip(network.variants, (STEPS, STEPS + 3), strict=True):
        assert variant.signature().outputs[0].shape == (steps, 2, BATCH, HIDDEN)


def test_a_layer_after_another_is_written_too(tmp_path: Path) -> None:
    tagger, path = torch.nn.LSTM(FEATURES, HIDDEN, num_layers=2, bidirectional=True).eval(), tmp_path / "tagger.onnx"
    program: Any = torch.onnx.export(tagger, (torch.from_numpy(sequence()),), dynamo=True)
    program.save(str(path))
    assert [node.op_type for node in onnx.load(str(path)).graph.node].count("LSTM") == 2
    assert read_onnx(path).signature().outputs[0].shape == (STEPS, BATCH, 2 * HIDDEN)


def test_other_networks_are_opened_without_the_package_onnx() -> None:
    """It is an extra, which a plain install lacks."""
    code = "import sys; sys.modules['onnx'] = None; from tchub.hub.networks import sources, tuned"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamically_quantised_layers_keep_the_values_of_their_weights(tmp_path: Path, per_channel: bool) -> None:
    original, quantised = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(layer("LSTM", "bidirectional", 4), original)
    quantize_dynamic(original, quantised, per_channel=per_channel)
    file = onnx.load(quantised)
    assert [node.op_type for node in file.graph.node] == ["DynamicQuantizeLSTM"]
    if per_channel:  # older files have their constants among the inputs
        constants = file.graph.initializer
        info = helper.make_tensor_value_info
        file.graph.input.extend(info(one.name, one.data_type, one.dims) for one in constants)
        onnx.save(file, quantised)
    network = read_onnx(quantised, {"steps": [STEPS], "X.1": [BATCH]})
    assert "states" in network.notes[-1]
    (x,) = network.inputs()
    results = compute(prepare(network.imported()), x)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in network.model.graph.initializer}
    assert {array.dtype.name for array in weights.values()} == {"float32"}
    own, exact = run(onnx.load(quantised), x.numpy()), run(onnx.load(original), x.numpy())
    for ours, theirs, unrounded in zip(results, own, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.03)
        assert 0 < abs(ours - unrounded).max() < 0.03
    for ours, theirs in zip(results, reference_module(quantised)(x), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
