"""Loops, branches, functions and operators of ONNX files that TVM lacks, beside what ONNX Runtime computes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from relax_kit import compute
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.frontend import onnx_fold
from tchub.hub.networks.frontend.onnx_file import reference_module
from tchub.hub.networks.frontend.onnx_fold import folded
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.transform.prepare import prepare

Info, node = helper.make_tensor_value_info, helper.make_node
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = Info("x", FLOAT, [3, 4])
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


@pytest.fixture
def equal(tmp_path: Path) -> Equal:
    """Compile a model, and assert that its outputs are ONNX Runtime's; return the network."""

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


def body(nodes: Sequence[Any], *outputs: str, carried: str = "s") -> Any:
    inputs = [Info("i", INT64, []), Info("more", BOOL, []), Info(carried, FLOAT, [3, 4])]
    results = [Info(name, BOOL if name == "still" else FLOAT, None) for name in outputs]
    return helper.make_graph(nodes, "body", inputs, results)


MATRIX = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")


@pytest.mark.parametrize("opset", [11, 17])
def test_a_loop_of_known_steps_is_written_out_and_its_slices_are_stacked(equal: Equal, opset: int) -> None:
    steps = [
        node("MatMul", ["s", "w"], ["product"]),
        node("Tanh", ["product"], ["new"]),
        node("Identity", ["more"], ["still"]),
        node("Gather", ["new", "i"], ["row"], axis=0),
    ]
    loop = node("Loop", ["n", "", "x"], ["last", "rows"], body=body(steps, "still", "new", "row"))
    equal(model([loop], {"last": 2, "rows": 2}, opset=opset, n=np.int64(3), w=MATRIX))


def test_a_loop_ends_when_its_counter_says_and_takes_the_branch_of_each_step(equal: Equal) -> None:
    doubled = helper.make_graph([node("Add", ["s", "s"], ["a"])], "even", [], [Info("a", FLOAT, None)])
    shrunk = helper.make_graph([node("Sin", ["s"], ["b"])], "odd", [], [Info("b", FLOAT, None)])
    steps = [
        node("Mod", ["i", "two"], ["rest"]),
        node("Equal", ["rest", "zero"], ["even"]),
        node("If", ["even"], ["new"], then_branch=doubled, else_branch=shrunk),
        node("Less", ["i", "n"], ["still"]),
    ]
    loop = node("Loop", ["", "going", "x"], ["y"], body=body(steps, "still", "new"))
    constants = {"going": np.bool_(True), "n": np.int64(4), "two": np.int64(2), "zero": np.int64(0)}
    equal(model([loop], **constants))


@pytest.mark.parametrize("rows", [3, 2])
def test_a_branch_that_inputs_decide_is_selected_where_both_have_the_same_sizes(equal: Equal, rows: int) -> None:
    size = node("Shape", ["s"], ["rows"])
    part = node("Slice", ["s", "zero", "rows_taken"], ["a"])
    then = helper.make_graph([size, part], "then", [], [Info("a", FLOAT, None)])
    other = helper.make_graph([node("Sin", ["s"], ["b"])], "else", [], [Info("b", FLOAT, None)])
    nodes = [
        node("Identity", ["x"], ["s"]),
        node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    inputs = [X, Info("c", BOOL, [])]
    proto = model(nodes, inputs=inputs, zero=np.array([0]), rows_taken=np.array([rows]))
    kinds = {one.op_type for one in folded(proto, {"x": (3, 4), "c": ()}, "net").graph.node}
    assert ("Where" in kinds, "If" in kinds) == (rows == 3, rows == 2)
    if rows == 3:
        equal(proto)


def test_sizes_that_a_computed_size_fixes_are_known_to_what_follows(equal: Equal) -> None:
    sizes = [
        node("Shape", ["x"], ["s"]),
        node("Sub", ["s", "one"], ["less"]),
        node("Slice", ["x", "zero", "less"], ["p"]),
    ]
    shape = [node("Shape", ["p"], ["t"]), node("Gather", ["t", "zero_"], ["n"]), node("Equal", ["n", "two"], ["c"])]
    then = helper.make_graph([node("Sin", ["p"], ["a"])], "then", [], [Info("a", FLOAT, None)])
    other = helper.make_graph([node("Cos", ["p"], ["b"])], "else", [], [Info("b", FLOAT, None)])
    choice = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    # A branch of other sizes before it, which is given up.
    wide = [node("Concat", ["x", "x"], ["w0"], axis=0), *(node("Sin", [f"w{i}"], [f"w{i + 1}"]) for i in range(20))]
    first = helper.make_graph(wide, "wide", [], [Info("w20", FLOAT, None)])
    second = helper.make_graph([node("Sin", ["x"], ["v"])], "same", [], [Info("v", FLOAT, None)])
    given_up = node("If", ["flag"], ["u"], then_branch=first, else_branch=second)
    constants = {"one": np.array([1, 1]), "zero": np.array([0, 0]), "zero_": np.int64(0), "two": np.int64(2)}
    proto = model([given_up, *sizes, *shape, choice], inputs=[X, Info("flag", BOOL, [])], **constants)
    assert [one.op_type for one in folded(proto, {"x": (3, 4), "flag": ()}, "net").graph.node].count("If") == 1
    equal(model([*sizes, *shape, choice], **constants))


def test_a_scan_goes_over_the_slices_of_a_tensor_backwards_too(equal: Equal) -> None:
    inputs = [Info("s", FLOAT, [4]), Info("row", FLOAT, [4]), Info("last", FLOAT, [4])]
    steps = [node("Add", ["s", "row"], ["sum"]), node("Mul", ["sum", "last"], ["new"]), node("Sin", ["new"], ["out"])]
    graph = helper.make_graph(steps, "body", inputs, [Info("new", FLOAT, [4]), Info("out", FLOAT, [4])])
    facts = {"num_scan_inputs": 2, "scan_input_directions": [0, 1], "scan_output_axes": [1]}
    scan = node("Scan", ["zeros", "x", "x"], ["total", "rows"], body=graph, **facts)
    equal(model([scan], {"total": 1, "rows": 2}, zeros=np.zeros(4, "float32")))


def test_what_follows_from_sizes_is_computed_before_the_import(equal: Equal) -> None:
    """Widths of a padding, as PyTorch's first exporter writes them; a branch by the number of axes."""
    doubled = helper.make_graph([node("Add", ["wide", "wide"], ["a"])], "then", [], [Info("a", FLOAT, None)])
    other = helper.make_graph([node("Sin", ["wide"], ["b"])], "else", [], [Info("b", FLOAT, None)])
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Div", ["shape", "two"], ["half"]),
        node("Concat", ["half", "half"], ["widths"], axis=0),
        node("Pad", ["x", "widths"], ["wide"]),
        node("Size", ["shape"], ["axes"]),
        node("Equal", ["axes", "two"], ["flat"]),
        node("If", ["flat"], ["y"], then_branch=doubled, else_branch=other),
        node("Identity", ["shape"], ["sizes"]),
    ]
    proto = model(nodes, two=np.int64(2))
    proto.graph.output.append(Info("sizes", INT64, [2]))
    assert "If" not in {one.op_type for one in folded(proto, {"x": [3, 4]}, "net").graph.node}
    equal(proto)


def test_a_loop_by_values_or_of_too_many_steps_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_fold, "_MOST_NODES", 20)
    steps = [node("Identity", ["more"], ["still"]), node("Sin", ["s"], ["new"])]
    loop = node("Loop", ["n", "", "x"], ["y"], body=body(steps, "still", "new"), name="decoder")
    unknown = model([loop], inputs=[X, Info("n", INT64, [])])
    endless = model([loop], n=np.int64(10**9))
    for proto, problem in ((unknown, "as often as values"), (endless, "more than 20 operators")):
        with pytest.raises(NetworkImportError, match=rf"net .*{problem}.*\(Loop, node 'decoder'\)") as caught:
            folded(proto, {"x": [3, 4]}, "net")
        assert "steps" in caught.value.remedy


def test_functions_of_the_file_and_of_onnx_are_inlined(equal: Equal) -> None:
    twice = helper.make_function("mine", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [])
    twice.opset_import.append(helper.make_opsetid("", 17))
    celus = node("Celu", ["z"], ["c"], alpha=0.5), node("Celu", ["c"], ["y"])
    equal(model([node("Twice", ["x"], ["z"], domain="mine"), *celus], functions=[twice]))


def test_attention_takes_masks_and_caches_that_are_constants_or_left_out(equal: Equal) -> None:
    shapes = {"q": [2, 3, 16], "k": [2, 3, 8], "v": [2, 3, 8], "pk": [2, 1, 2, 8], "pv": [2, 1, 2, 8]}
    inputs = [Info(name, FLOAT, shape) for name, shape in shapes.items()]
    heads = {"q_num_heads": 2, "kv_num_heads": 1}
    cached = node("Attention", ["q", "k", "v", "", "pk", "pv"], ["c", "nk", "nv"], **heads)
    masked = node("Attention", ["q", "k", "v", "m"], ["y"], **heads)
    mask = np.tril(np.ones((3, 3), bool))
    equal(model([cached, masked], {"c": 3, "nk": 4, "y": 3}, inputs=inputs, opset=23, m=mask))


def test_a_model_without_any_of_this_stays_as_it_is() -> None:
    proto = model([node("MatMul", ["x", "w"], ["y"])], w=MATRIX)
    assert folded(proto, {"x": [3, 4]}, "net") is proto


IMAGE = Info("x", FLOAT, [1, 3, 6, 6])
QUANTIZED = node("QuantizeLinear", ["x", "s", "z"], ["q"])
REAL = node("DequantizeLinear", ["p", "t", "z"], ["y"])
SCALES = {"s": np.float32(0.047), "z": np.uint8(120), "t": np.float32(0.1)}


def kernel(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-127, 127, shape).astype("int8")


def test_quantised_convolutions_with_a_scale_for_each_channel(equal: Equal) -> None:
    inputs = ["q", "s", "z", "w", "ws", "wz", "t", "z", "bias"]
    weights = {"w": kernel(4, 3, 3, 3), "ws": np.float32([0.01, 0.02, 0.015, 0.03]), "wz": np.zeros(4, np.int8)}
    convolution = node("QLinearConv", inputs, ["p"], pads=[1, 1, 1, 1], strides=[2, 2])
    bias = np.array([100, -200, 0, 50], np.int32)
    equal(model([QUANTIZED, convolution, REAL], inputs=[IMAGE], bias=bias, **weights, **SCALES))


@pytest.mark.parametrize("operator", ["QLinearMatMul", "QGemm", "QLinearAdd"])
def test_quantised_products_and_sums(equal: Equal, operator: str) -> None:
    shape = (3, 4) if operator == "QLinearAdd" else (4, 4)
    inputs = ["q", "s", "z", "w", "ws", "wz", *(["", "t", "z"] if operator == "QGemm" else ["t", "z"])]
    domain = "" if operator == "QLinearMatMul" else "com.microsoft"
    weights = {"w": kernel(*shape).view(np.uint8), "ws": np.float32(0.02), "wz": np.uint8(128)}
    equal(model([QUANTIZED, node(operator, inputs, ["p"], domain=domain), REAL], **weights, **SCALES))


def test_integers_are_convolved_and_scaled_as_dynamic_quantisation_does(equal: Equal) -> None:
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("ConvInteger", ["q", "w", "z"], ["sums"], group=3),
        node("Cast", ["sums"], ["reals"], to=FLOAT),
        node("Mul", ["reals", "s"], ["y"]),
    ]
    equal(model(nodes, inputs=[IMAGE], w=kernel(3, 1, 3, 3)))


MANY = {"sizes": np.array([1 << 40, 3, 4])}
ENDLESS = {
    "ConstantOfShape": ([], MANY),
    "Range": ([], {"start": np.float32(0), "end": np.float32(1e12), "step": np.float32(1)}),
    "Expand": ([], {"one": np.float32([1])} | MANY),
    "Dropout": ([node("Expand", ["x", "sizes"], ["in"])], MANY),
    "ReverseSequence": ([node("ConstantOfShape", ["sizes"], ["in"])], MANY | {"n": np.array([3, 3, 3])}),
}


@pytest.mark.parametrize("operator", ENDLESS)
def test_what_a_file_asks_terabytes_for_is_not_computed(operator: str) -> None:
    before, given = ENDLESS[operator]
    inputs = ["in", *(given.keys() - MANY)] if before else list(given)
    outputs = ["many", "mask"] if operator == "Dropout" else ["many"]
    nodes = [*before, node(operator, inputs, outputs), node("ReduceSum", ["many"], ["sum"], keepdims=0)]
    asked = model([*nodes, node("Add", ["x", "sum"], ["y"])], **given)
    assert operator in {one.op_type for one in folded(asked, {"x": [3, 4]}, "net").graph.node}


# Operators that the importer lacks or has otherwise

RESIZED = {
    "of opset 9": (9, {"scales": [1, 1, 2, 2]}, {}),
    "rounded up": (19, {"scales": [1, 1, 1.7, 2.3]}, {"mode": "nearest", "nearest_mode": "ceil"}),
    "smoothed": (19, {"sizes": [1, 3, 3, 4]}, {"mode": "linear", "antialias": 1}),
    "without what is outside": (19, {"scales": [1, 1, 0.6, 2]}, {"mode": "cubic", "exclude_outside": 1}),
    "not to whole sizes": (19, {"scales": [1, 1, 1.7, 0.6]}, {"mode": "linear"}),
    "by axes": (18, {"sizes": [10, 5]}, {"mode": "linear", "axes": [3, 2]}),
    "channels last": (19, {"scales": [1, 2, 2, 1]}, {"mode": "linear"}),
    "of opset 10": (10, {"scales": [1, 1, 2, 1.5]}, {"mode": "linear"}),
    "to sizes, as PyTorch wrote them": (11, {"roi": [], "scales": [], "sizes": [1, 3, 8, 10]}, {"mode": "linear"}),
    "to sizes that are no multiples": (11, {"roi": [], "scales": [], "sizes": [1, 3, 7, 9]}, {"mode": "nearest"}),
}


@pytest.mark.parametrize(("opset", "given", "facts"), RESIZED.values(), ids=RESIZED)
def test_images_are_resized_as_onnx_runtime_does(
    equal: Equal, opset: int, given: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    every = ["scales"] if opset <= 10 else ["roi", "scales", "sizes"]
    inputs = ["x", *(name if name in given else "" for name in every)]
    values = {name: np.array(by, "int64" if name == "sizes" else "float32") for name, by in given.items()}
    operator = node("Resize" if opset > 9 else "Upsample", inputs, ["y"], **facts)
    equal(model([operator], inputs=[IMAGE], opset=opset, **values))


def test_a_depth_may_be_a_tensor_of_one(equal: Equal) -> None:
    nodes = [node("Cast", ["x"], ["i"], to=INT64), node("OneHot", ["i", "depth", "ends"], ["y"])]
    equal(model(nodes, {"y": 3}, depth=np.array([5]), ends=np.float32([0, 1])))


def test_boxes_are_shifted_by_half_a_pixel_of_what_they_are_cut_from(equal: Equal) -> None:
    facts = {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "spatial_scale": 0.25}
    boxes = np.float32([[2, 3, 15, 20], [0, 0, 22, 9]])
    equal(model([node("RoiAlign", ["x", "b", "n"], ["y"], **facts)], inputs=[IMAGE], b=boxes, n=np.array([0, 0])))


@pytest.mark.parametrize("opset", [13, 18])
def test_rows_are_divided_by_their_norm(equal: Equal, opset: int) -> None:
    first, second = node("LpNormalization", ["x"], ["z"], p=1, axis=0), node("LpNormalization", ["z"], ["y"])
    equal(model([first, second], opset=opset))


def test_a_new_axis_may_be_one_number(equal: Equal) -> None:
    equal(model([node("Unsqueeze", ["x", "axis"], ["y"])], {"y": 3}, axis=np.int64(1)))


def test_sums_and_extremes_of_several_are_computed_one_after_the_other(equal: Equal) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Sum", ["c", "c", "b"], ["s"]),
        node("Max", ["s", "low"], ["m"]),
        node("Min", ["m", "b", "s"], ["n"]),
        node("Mean", ["n", "m"], ["y"]),
    ]
    weights = {"w": kernel(4, 3, 3, 3).astype("float32") / 99, "b": np.float32([[[0.5]]] * 4), "low": np.float32(0)}
    equal(model(nodes, inputs=[IMAGE], **weights))


TRANSPOSED = {
    "to a size": {"output_shape": [13, 12], "strides": [2, 2]},
    "to a size, more behind": {"output_shape": [13, 12], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    "to a larger size": {"output_shape": [15, 20], "strides": [2, 3]},
    "to a multiple": {"strides": [2, 3], "auto_pad": "SAME_LOWER", "dilations": [2, 1]},
}


@pytest.mark.parametrize("facts", TRANSPOSED.values(), ids=TRANSPOSED)
def test_transposed_convolutions_are_padded_as_their_size_asks(equal: Equal, facts: Mapping[str, Any]) -> None:
    weight = kernel(3, 2, 4, 3).astype("float32") / 99
    equal(model([node("ConvTranspose", ["x", "w"], ["y"], **facts)], inputs=[IMAGE], w=weight))


@pytest.mark.parametrize("opset", [17, 18])
def test_means_and_deviations_may_be_results(equal: Equal, opset: int) -> None:
    outputs = {"y": 4, "mean": 4, "inverse": 4}
    normalised = node("LayerNormalization", ["x", "w", "b"], list(outputs), axis=2, epsilon=0.1)
    weights = {"w": kernel(6, 6).astype("float32") / 99, "b": np.float32([0.5])}
    equal(model([normalised], outputs, inputs=[IMAGE], opset=opset, **weights))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_groups_of_channels_keep_the_small_deviation_of_large_numbers(tmp_path: Path, dtype: str) -> None:
    """Of 100 give or take 0.1, of which TVM leaves no number and ONNX Runtime one digit."""
    each = np.linspace(0.5, 2, 6, dtype=dtype)
    x = 0.1 * np.random.default_rng(0).standard_normal((2, 6, 5, 4)) + 100
    nodes = [
        node("CastLike", ["x", "w"], ["z"]),
        node("GroupNormalization", ["z", "w", "w"], ["v"], num_groups=2),
        node("Cast", ["v"], ["y"], to=FLOAT),
    ]
    onnx.save(model(nodes, inputs=[Info("x", FLOAT, x.shape)], opset=21, w=each), tmp_path / "net.onnx")
    x = x.astype("float32")
    (ours,) = compute(prepare(open_network(tmp_path / "net.onnx").imported()), torch.from_numpy(x))
    groups = x.astype("float64").reshape(2, 2, -1)
    centred = groups - groups.mean(-1, keepdims=True)
    right = (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    np.testing.assert_allclose(ours, (right + 1) * each[:, None, None], atol=5e-3)


def test_columns_become_an_image(equal: Equal) -> None:
    facts = {"strides": [2, 3], "pads": [0, 1, 1, 0], "dilations": [1, 1]}
    columns = [node("Reshape", ["x", "shape"], ["c"]), node("Col2Im", ["c", "image", "block"], ["y"], **facts)]
    given = {"shape": np.array([1, 12, 9]), "image": np.array([5, 9]), "block": np.array([2, 3])}
    equal(model(columns, inputs=[IMAGE], opset=18, **given))


@pytest.mark.parametrize("known", [True, False])
def test_sequences_are_reversed_up_to_their_lengths(equal: Equal, known: bool) -> None:
    """Whose lengths are constants, or computed of an input."""
    shaped = [node("Reshape", ["x", "shape"], ["r"]), node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=0)]
    lengths = [] if known else [node("Clip", ["m", "", "one"], ["c"]), node("Cast", ["c"], ["n"], to=INT64)]
    nodes = [*shaped, *lengths, node("ReverseSequence", ["r", "n"], ["y"], time_axis=1, batch_axis=0)]
    given = {"n": np.array([1, 4, 3])} if known else {"one": np.float32(1)}
    equal(model(nodes, {"y": 3}, shape=np.array([3, 4, 1]), **given))


def test_an_output_that_nobody_asks_for_is_no_input_that_is_left_out(equal: Equal) -> None:
    normalised = node("LayerNormalization", ["x", "w"], ["z", "", "inverse"])
    equal(model([normalised, node("Clip", ["z", "", "most"], ["y"])], w=MATRIX[0], most=np.float32(0.5)))


HALF = [node("DFT", ["r"], ["y"], axis=2, onesided=1)]
BACK = [node("DFT", ["r", "n", "axis"], ["z"]), node("DFT", ["z", "", "axis"], ["y"], inverse=1)]


@pytest.mark.parametrize(("opset", "nodes"), [(17, HALF), (20, BACK)], ids=["half of it", "longer, and back"])
def test_spectra_and_what_they_are_of(equal: Equal, opset: int, nodes: Sequence[Any]) -> None:
    sizes = {"shape": np.array([3, 6, 6, 1]), "n": np.array(8), "axis": np.array(1)}
    rows = node("Reshape", ["x", "shape"], ["r"])
    equal(model([rows, *nodes], {"y": 4}, inputs=[IMAGE], opset=opset, **sizes), atol=1e-5)  # theirs is off by 4e-6


def test_frames_of_a_signal_have_spectra(equal: Equal) -> None:
    nodes = [node("Reshape", ["x", "shape"], ["r"]), node("STFT", ["r", "step", "window", "size"], ["y"])]
    given = {"step": np.array(5), "window": np.hanning(16).astype("float32"), "size": np.array(16)}
    equal(model(nodes, {"y": 4}, inputs=[IMAGE], shape=np.array([2, 54, 1]), **given))


def test_a_constant_may_be_a_number_of_the_node_itself(equal: Equal) -> None:
    equal(model([node("Constant", [], ["two"], value_float=2.0), node("Mul", ["x", "two"], ["y"])]))


@pytest.mark.parametrize(
    ("opset", "bounds", "facts", "limits"),
    [
        (17, ["low", "high"], {}, 2),
        (17, ["", "high"], {}, 1),
        (17, ["nan", "high"], {}, 1),
        (9, [], {"min": -0.5}, 1),
        (17, ["result", "high"], {}, 0),
    ],
)
def test_bounds_that_are_numbers_are_operators_whose_layout_is_known(
    equal: Equal, opset: int, bounds: list[str], facts: dict[str, float], limits: int
) -> None:
    held = {name: np.float32(value) for name, value in {"low": -0.5, "high": 0.25, "nan": np.nan}.items()}
    nodes = [node("ReduceMin", ["x"], ["result"], keepdims=0), node("Clip", ["x", *bounds], ["y"], **facts)]
    network = equal(model(nodes[-1:] if "result" not in bounds else nodes, opset=opset, **held))
    script = network.imported().script()
    assert script.count("R.maximum") + script.count("R.minimum") == limits


@pytest.mark.parametrize("signs", [(1, 0), (0, 1), (0, 0), (1, 1)])
def test_infinities_of_one_sign_are_told_apart(equal: Equal, signs: tuple[int, int]) -> None:
    infinite = node("IsInf", ["q"], ["b"], detect_positive=signs[0], detect_negative=signs[1])
    grown = [node("Mul", ["x", "huge"], ["p"]), node("Mul", ["p", "huge"], ["q"])]
    equal(model([*grown, infinite, node("Cast", ["b"], ["y"], to=FLOAT)], huge=np.float32(1e38)))


@pytest.mark.parametrize("known", [True, False])
def test_an_exponent_may_be_whole_numbers_where_the_base_has_fractions(equal: Equal, known: bool) -> None:
    """As a constant, or computed of an input."""
    nodes = [node("Abs", ["x"], ["a"]), *[node("Cast", ["a"], ["n"], to=INT64)] * (not known)]
    equal(model([*nodes, node("Pow", ["a", "n"], ["y"])], **({"n": np.array([0, 1, 5, 7])} if known else {})))
