"""ONNX files as users have them: several inputs, free sizes, half precision, data beside the file."""

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import tvm
from onnx import TensorProto, helper, numpy_helper
from relax_kit import compute, prepare
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.frontend.onnx_file import reference_module
from tchub.hub.networks.latency import reference_file
from tchub.hub.networks.rivals import ReferenceNetwork
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.tasks import network_tasks

Info, node = helper.make_tensor_value_info, helper.make_node


def model(batch: int | str = 2, kind: int = TensorProto.FLOAT, extra: Any = None) -> onnx.ModelProto:
    """Rows of a table where a mask holds, else an input; times a matrix, in the type `kind`."""
    rng, dtype = np.random.default_rng(0), helper.tensor_dtype_to_np_dtype(kind)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(dtype), name)
        for name, shape in (("table", (10, 8)), ("matrix", (8, 4)))
    ]
    nodes = [
        node("Gather", ["table", "ids"], ["rows"], axis=0),
        node("Where", ["mask", "rows", "x"], ["chosen"]),
        node("MatMul", ["chosen", "matrix"], ["y"], name="product"),
        extra or node("Softmax", ["y"], ["p"], axis=-1),
    ]
    inputs = [Info("ids", TensorProto.INT64, [batch, 6]), Info("mask", TensorProto.BOOL, [batch, 6, 1])]
    outputs = [Info("y", kind, [batch, 6, 4]), Info("p", kind, [batch, 6, 4])]
    graph = helper.make_graph(nodes, "graph", [*inputs, Info("x", kind, [batch, 6, 8])], outputs, weights)
    domains = {"": 17, "mine": 1, "ai.onnx.ml": 3, "com.microsoft": 1}
    opsets = [helper.make_opsetid(*one) for one in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def saved(tmp_path: Path, value: onnx.ModelProto) -> Path:
    onnx.save(value, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_inputs_and_outputs_have_names_and_the_library_computes_what_the_original_does(
    tmp_path: Path, kind: int
) -> None:
    network = open_network(saved(tmp_path, model(kind=kind)))
    expected = reference_module(tmp_path / "net.onnx")(*network.inputs())
    results = compute(prepare(network.imported()), *network.inputs())
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(results, expected, strict=True))
    name = "float32" if kind == TensorProto.FLOAT else "float16"
    assert str(network.signature()) == (
        f"(ids: int64[2, 6], mask: bool[2, 6, 1], x: {name}[2, 6, 8]) -> {{y: {name}[2, 6, 4], p: {name}[2, 6, 4]}}"
    )
    assert {spec.computed for spec in network.signature().outputs} == {"float32"}
    assert len(network.notes) == (kind == TensorProto.FLOAT16)


def test_both_packages_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, model())
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(NetworkImportError, match="onnx and onnxruntime") as caught:
        open_network(path)
    assert caught.value.remedy == "pip install 'tchub[onnx]'"


def test_example_inputs_are_in_the_range_of_the_table_and_not_all_the_same(tmp_path: Path) -> None:
    ids, mask, x = open_network(saved(tmp_path, model())).inputs()
    assert 2 < ids.max() < 10
    assert mask.any()
    assert not mask.all()
    assert x.std() > 0.5


def test_free_sizes_are_refused_with_the_option_or_tuned_at_those_given(tmp_path: Path) -> None:
    path = saved(tmp_path, model("n"))
    with pytest.raises(NetworkImportError, match=r"net has dynamic shapes: n \(axis 0 of ids, mask, x") as caught:
        open_network(path)
    assert caught.value.remedy == "say for which sizes to tune it: --shape batch=1,8"
    network = open_network(path, shapes={"n": [1, 3]})
    assert [variant.name for variant in network.variants] == ["net-n1", "net-n3"]
    for batch, variant in zip((1, 3), network.variants, strict=True):
        assert [len(x) for x in variant.inputs()] == [batch] * 3
        assert variant.signature().outputs[0].shape == (batch, 6, 4)


def test_sizes_that_an_exporter_has_no_name_for_differ(tmp_path: Path) -> None:
    x = Info("x", TensorProto.FLOAT, ["?", 3, "?", "?"])
    graph = helper.make_graph([node("Relu", ["x"], ["y"])], "graph", [x], [Info("y", TensorProto.FLOAT, [None] * 4)])
    path = saved(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    network = open_network(path, shapes={"batch": [2], "x.2": [5], "x.3": [7]})
    assert network.signature().inputs[0].shape == (2, 3, 5, 7)


def test_a_batch_that_has_a_name_for_each_input_is_one(tmp_path: Path) -> None:
    """As tf2onnx writes a network of several inputs."""
    inputs = [Info(name, TensorProto.FLOAT, [size, 3]) for name, size in (("a", "unk__1"), ("b", "unk__2"))]
    graph = helper.make_graph([node("Add", ["a", "b"], ["y"])], "graph", inputs, [Info("y", TensorProto.FLOAT, None)])
    path = saved(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    with pytest.raises(NetworkImportError) as caught:
        open_network(path)
    assert caught.value.remedy == "say for which sizes to tune it: --shape batch=1,8"
    variants = open_network(path, shapes={"batch": [1, 4]}).variants
    assert [variant.name for variant in variants] == ["net-batch1", "net-batch4"]
    assert [[len(x) for x in variant.inputs()] for variant in variants] == [[1, 1], [4, 4]]
    (apart,) = open_network(path, shapes={"a.0": [4], "batch": [1]}).variants
    assert apart.signature().outputs[0].shape == (4, 3)


def test_a_size_called_batch_is_given_beside_others_by_their_names(tmp_path: Path) -> None:
    inputs = [Info(name, TensorProto.FLOAT, [size, 3]) for name, size in (("a", "batch"), ("b", "n"))]
    nodes = [node("Relu", ["a"], ["y"]), node("Relu", ["b"], ["z"])]
    graph = helper.make_graph(nodes, "graph", inputs, [Info(name, TensorProto.FLOAT, None) for name in "yz"])
    path = saved(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    for shapes in ({}, {"batch": [4]}):
        with pytest.raises(NetworkImportError) as caught:
            open_network(path, shapes=shapes)
        assert caught.value.remedy == "say for which sizes to tune it: --shape batch=1,8 --shape n=128"
    assert [len(x) for x in open_network(path, shapes={"batch": [4], "n": [2]}).inputs()] == [4, 2]


def test_a_number_that_chooses_a_branch_may_be_fixed(tmp_path: Path) -> None:
    def branch(kind: str) -> Any:
        return helper.make_graph([node(kind, ["x"], ["r"])], kind, [], [Info("r", TensorProto.FLOAT, None)])

    choice = {"then_branch": branch("Sin"), "else_branch": branch("Transpose")}
    nodes = [node("Equal", ["rate", "wide"], ["c"]), node("If", ["c"], ["y"], **choice)]
    inputs = [Info("x", TensorProto.FLOAT, [2, "n"]), Info("rate", TensorProto.INT64, [])]
    held = [numpy_helper.from_array(np.int64(16000), "wide")]
    graph = helper.make_graph(nodes, "graph", inputs, [Info("y", TensorProto.FLOAT, None)], held)
    path = saved(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    with pytest.raises(NetworkImportError) as caught:
        open_network(path, shapes={"n": [3]}).signature()
    assert caught.value.remedy == "fix the input that chooses a branch, e.g. --shape rate=1"
    for numbers in ([16000, 8000], [1 << 64]):
        with pytest.raises(NetworkImportError, match="input rate of net is one int64"):
            open_network(path, shapes={"n": [3], "rate": numbers})
    wide, narrow = (open_network(path, shapes={"n": [3], "rate": [rate]}) for rate in (16000, 0))
    assert (wide.name, str(wide.signature())) == ("net-rate16000", "(x: float32[2, 3]) -> float32[2, 3]")
    assert "fixed inputs: rate=16000" in wide.notes
    (x,) = wide.inputs()
    for variant, expected in ((wide, torch.sin(x)), (narrow, x.T)):
        for result in (compute(prepare(variant.imported()), x), reference_module(reference_file(variant, tmp_path))(x)):
            np.testing.assert_allclose(result[0], expected, rtol=1e-5)


def external(tmp_path: Path, location: str, **facts: str) -> Path:
    value = model()
    tensor = value.graph.initializer[0]
    content = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in ({"location": location, "length": str(len(content))} | facts).items():
        tensor.external_data.add(key=key, value=text)
    (tmp_path / "inside").mkdir()
    (tmp_path / "weights.bin").write_bytes(content)
    (tmp_path / "inside" / "weights.bin").write_bytes(content)
    os.symlink(tmp_path / "weights.bin", tmp_path / "inside" / "link.bin")
    return saved(tmp_path / "inside", value)


def test_weights_beside_the_file_are_read(tmp_path: Path) -> None:
    path = external(tmp_path, "weights.bin")
    network = open_network(path)
    assert reference_module(path)(*network.inputs())[0].isfinite().all()
    assert network.imported().functions


@pytest.mark.parametrize(
    ("location", "facts", "message"),
    [
        ("../weights.bin", {}, "reads data outside of its folder"),
        ("/etc/passwd", {}, "reads data outside of its folder"),
        ("C:\\weights.bin", {}, "reads data outside of its folder"),
        ("link.bin", {}, "reads data outside of its folder"),
        ("missing.bin", {}, "lacks its data"),
        ("weights.bin", {"offset": "1000000"}, "cut short"),
        ("weights.bin", {"offset": "-5"}, "cut short"),
    ],
)
def test_data_outside_of_the_folder_is_never_read(
    tmp_path: Path, location: str, facts: dict[str, str], message: str
) -> None:
    with pytest.raises(NetworkImportError, match=message) as caught:
        open_network(external(tmp_path, location, **facts))
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("operator", "domain", "remedy"),
    [
        ("Fancy", "mine", "leave it out"),
        ("StringNormalizer", "", "leave it out"),
        ("PackedAttention", "com.microsoft", "before ONNX Runtime"),
        ("SVMRegressor", "ai.onnx.ml", "strings to ONNX Runtime"),
    ],
)
def test_an_operator_that_tvm_lacks_is_named_with_its_node(
    tmp_path: Path, operator: str, domain: str, remedy: str
) -> None:
    network = open_network(saved(tmp_path, model(extra=node(operator, ["y"], ["p"], name="odd", domain=domain))))
    with pytest.raises(NetworkImportError, match=rf"TVM cannot import net: {operator} \(node 'odd'\)") as caught:
        network.imported()
    assert caught.value.fields["operator"] == operator
    assert remedy in caught.value.remedy


def test_outputs_may_leave_out_their_shape(tmp_path: Path) -> None:
    """As those do that a tool adds; ONNX Runtime infers it."""
    added = model()
    added.graph.output.append(onnx.ValueInfoProto(name="chosen"))
    added.graph.output[0].type.tensor_type.ClearField("shape")
    outputs = open_network(saved(tmp_path, added)).signature().outputs
    assert [one.shape for one in outputs] == [(2, 6, 4), (2, 6, 4), (2, 6, 8)]


def test_an_output_may_have_a_shape_that_an_operator_computes(tmp_path: Path) -> None:
    """As tf2onnx writes a contraction: ONNX infers no shape there."""
    proto = model()
    shape = [node("Shape", ["p"], ["s"]), node("Max", ["s", "s"], ["m"])]
    proto.graph.node.extend([*shape, node("Reshape", ["y", "m"], ["r"]), node("Squeeze", ["r"], ["q"])])
    proto.graph.output.append(Info("q", TensorProto.FLOAT, None))
    network = open_network(saved(tmp_path, proto))
    assert network.signature().outputs[2].shape == (2, 6, 4)
    assert not network.model.graph.output[2].type.tensor_type.HasField("shape")  # type: ignore[attr-defined]


def test_nodes_may_stand_before_those_whose_outputs_they_take(tmp_path: Path) -> None:
    """As a tool leaves them that appends what it adds: ONNX Runtime sorts them."""
    sorted_ = model()
    shuffled = onnx.ModelProto.FromString(sorted_.SerializeToString())
    del shuffled.graph.node[:]
    shuffled.graph.node.extend([*sorted_.graph.node][::-1])
    assert open_network(saved(tmp_path, shuffled)).model == sorted_  # type: ignore[attr-defined]
    shuffled.graph.node[-1].input[1] = "p"
    with pytest.raises(NetworkImportError, match="takes what follows from its own output"):
        open_network(saved(tmp_path, shuffled))


def test_the_graphs_in_a_node_may_have_names_of_the_graph_around_it(tmp_path: Path) -> None:
    """Their own ones are no others, and what they take from around them is made before."""
    kind, shape = TensorProto.FLOAT, [2, 6, 4]

    def branch(operator: str) -> onnx.GraphProto:
        nodes = [node(operator, ["y"], ["inner"]), node("Neg", ["inner"], ["p"])]
        return helper.make_graph(nodes, operator, [], [Info("p", kind, shape)])

    proto = model(extra=node("If", ["c"], ["p"], then_branch=branch("Relu"), else_branch=branch("Exp")))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    nodes = [*proto.graph.node]
    for order in (nodes, nodes[::-1]):
        other = onnx.ModelProto.FromString(proto.SerializeToString())
        del other.graph.node[:]
        other.graph.node.extend(order)
        network = open_network(saved(tmp_path, other))
        y, p = compute(prepare(network.imported()), *network.inputs())
        assert np.array_equal(p, -np.maximum(y, 0))


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """Two convolutions, of 3x3 and of single pixels, rounded before and behind, as `quantize_static` writes them."""
    rng, nodes, weights = np.random.default_rng(0), [], {}

    def rounded(value: str, scale: float, zero: int) -> str:
        weights[f"{value}.s"], weights[f"{value}.z"] = np.float32(scale), np.int8(zero)
        parameters = [f"{value}.s", f"{value}.z"]
        nodes.append(node("QuantizeLinear", [value, *parameters], [f"{value}.q"]))
        nodes.append(node("DequantizeLinear", [f"{value}.q", *parameters], [f"{value}.d"]))
        return f"{value}.d"

    value = rounded("x", 0.03, 2)
    for number, (inputs, size) in enumerate([(8, 3), (16, 1)]):
        name = f"w{number}"
        weights[name] = rng.integers(-127, 127, (16, inputs, size, size)).astype("int8")
        weights[f"{name}.s"], weights[f"{name}.z"] = np.full(16, 0.01, np.float32), np.zeros(16, np.int8)
        nodes.append(node("DequantizeLinear", [name, f"{name}.s", f"{name}.z"], [f"{name}.d"], axis=0))
        weights[f"b{number}"] = rng.standard_normal(16).astype("float32")
        convolved = [value, f"{name}.d", f"b{number}"]
        nodes.append(node("Conv", convolved, [f"c{number}"], pads=[size // 2] * 4))
        value = rounded(f"c{number}", 0.1, -128 + number)
    inputs, outputs = Info("x", TensorProto.FLOAT, [1, 8, 7, 7]), Info(value, TensorProto.FLOAT, [1, 16, 7, 7])
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "graph", [inputs], [outputs], tensors)
    return saved(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def test_what_is_rounded_behind_a_convolution_is_part_of_its_kernel(quantised: Path) -> None:
    network = open_network(quantised)
    lowered = prepare(network.imported())
    (expected,) = reference_module(quantised, optimised=False)(*network.inputs())
    assert len(np.unique(expected)) > 50
    assert np.array_equal(*compute(lowered, *network.inputs()), expected)
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    counts = Counter(task.op for task in network_tasks(lowered, target, "net"))
    # The elementwise ones are the input's rounding, and the output's transposition.
    assert counts == {"elementwise": 2, "conv2d": 1, "matmul": 1}
    assert "of 8 bits" in network.notes[0]


def test_an_onnx_files_exact_outputs_are_those_of_its_operators_one_by_one(
    quantised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, session = [], onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda *args: opened.append(args[1].graph_optimization_level) or session(*args)
    )
    torch.save([*open_network(quantised).inputs()], quantised.parent / "inputs.pt")
    reference = ReferenceNetwork({"reference": str(quantised), "inputs": str(quantised.parent / "inputs.pt")})
    (exact,) = reference.exact() or ()
    assert reference.exact()[0] is exact, "computed once"
    levels = onnxruntime.GraphOptimizationLevel
    assert opened == [levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL]
    reference.path = "missing.onnx"
    del reference.__dict__["_exact"]
    assert reference.exact() is None


ROUNDED = {
    "uint8, one parameter": ("uint8", np.float32(0.5), np.uint8(3)),
    "int16, no zero point": ("int16", np.float32(0.25), np.int16(0)),
    "int8, for each channel": ("int8", np.float32([0.5, 0.25, 1.0]), np.int8([0, 2, -3])),
}


@pytest.mark.parametrize(("dtype", "scale", "zero"), ROUNDED.values(), ids=ROUNDED)
def test_halves_are_rounded_to_even_numbers(tmp_path: Path, dtype: str, scale: Any, zero: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=1),
    ]
    x, q, y = (Info(name, of, [8, 3]) for name, of in (("x", TensorProto.FLOAT), ("q", kind), ("y", TensorProto.FLOAT)))
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (("s", scale), ("z", zero))]
    graph = helper.make_graph(nodes, "graph", [x], [q, y], tensors)
    path = saved(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    x = torch.arange(-12, 12).reshape(8, 3) / 8 + 1000 * torch.eye(8, 3)
    expected = reference_module(path, optimised=False)(x)
    assert np.unique(expected[0]).size > 6
    for ours, theirs in zip(compute(prepare(open_network(path).imported()), x), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_size_that_depends_on_values_is_refused(tmp_path: Path) -> None:
    places = model(extra=node("Unique", ["ids"], ["p"]))
    chosen = model(extra=node("NonMaxSuppression", ["x", "x"], ["p"], name="best"))
    for proto, where in ((places, "an output .*(p)"), (chosen, "an operator .*(NonMaxSuppression, node 'best')")):
        proto.graph.output[1].CopyFrom(Info("p", TensorProto.INT64, [None]))
        with pytest.raises(NetworkImportError, match=where.replace("(", r"\(").replace(")", r"\)")):
            open_network(saved(tmp_path, proto)).imported()


def test_what_onnx_runtime_has_no_kernel_for_is_refused_in_one_line(tmp_path: Path) -> None:
    """As tf2onnx writes a bicubic resize of an image to a smaller one."""
    proto = model(extra=node("Resize", ["x", "", "scales"], ["p"], mode="cubic"))
    proto.graph.initializer.append(numpy_helper.from_array(np.float32([1, 0.5, 0.5]), "scales"))
    with pytest.raises(NetworkImportError, match=r"is no network that ONNX Runtime can run: .*Cubic") as caught:
        reference_module(saved(tmp_path, proto))
    assert "\n" not in str(caught.value)


def test_what_is_damaged_invalid_or_larger_than_the_memory_is_refused_in_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path, model())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(NetworkImportError, match="is cut short"):
        open_network(path)
    invalid, endless, foreign = model(), model(), model(extra=node("Complex", ["y"], ["p"]))
    invalid.graph.node[0].input[0] = "nothing"
    endless.graph.initializer[0].dims[0] = 10**12
    messages = "no valid ONNX model", "GB of memory", "No Op registered for Complex"
    for proto, message in zip((invalid, endless, foreign), messages, strict=True):
        with pytest.raises(NetworkImportError, match=message) as caught:
            open_network(saved(tmp_path, proto))
        assert "\n" not in str(caught.value)
