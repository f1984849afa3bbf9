"""Loops, branches, functions and operators of ONNX files that TVM lacks, beside what ONNX Runtime computes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_kit import BOOL, FLOAT, IMAGE, INT64, MATRIX, Equal, Info, X, checker, kernel, model, node
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.frontend import onnx_fold
from tchub.hub.networks.frontend.onnx_fold import folded


@pytest.fixture
def equal(tmp_path: Path) -> Equal:
    return checker(tmp_path)


def body(nodes: Sequence[Any], *outputs: str, carried: str = "s") -> Any:
    inputs = [Info("i", INT64, []), Info("more", BOOL, []), Info(carried, FLOAT, [3, 4])]
    results = [Info(name, BOOL if name == "still" else FLOAT, None) for name in outputs]
    return helper.make_graph(nodes, "body", inputs, results)


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


def test_the_number_of_a_step_may_be_a_tensor_of_one(equal: Equal) -> None:
    """As tf2onnx writes a loop over boxes, which slices by it."""
    steps = [
        node("Add", ["i", "one"], ["next"]),
        node("Slice", ["x", "i", "next"], ["row"]),
        node("Add", ["s", "row"], ["new"]),
        node("Identity", ["more"], ["still"]),
    ]
    of_rows = body(steps, "still", "new")
    of_rows.input[0].CopyFrom(Info("i", INT64, [1]))
    equal(model([node("Loop", ["n", "", "x"], ["y"], body=of_rows)], n=np.int64(3), one=np.array([1])))


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


def test_sizes_behind_an_operator_of_onnx_runtime_are_known(equal: Equal) -> None:
    """ONNX infers none there. What is inferred again for the type of the power lacks the sum that follows."""
    nodes = [
        node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        node("Abs", ["g"], ["a"]),
        node("Pow", ["a", "e"], ["p"]),
        node("Add", ["x", "p"], ["r"]),
        node("Shape", ["r"], ["s"]),
        node("Expand", ["e", "s"], ["ones"]),
        node("Mul", ["r", "ones"], ["y"]),
    ]
    proto = model(nodes, e=np.float32(2.5))
    assert "Shape" not in {one.op_type for one in folded(proto, {"x": (3, 4)}, "net").graph.node}
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
    sums = [steps[0], node("Add", ["s", "c"], ["new"])]
    of_constants = node("Loop", ["n", "", "c"], ["z"], body=body(sums, "still", "new"), name="decoder")
    known = model([of_constants, node("Add", ["x", "z"], ["y"])], n=np.int64(1 << 40), c=np.float32(1))
    cases = (unknown, "as often as values"), (endless, "more than 20 operators"), (known, "more than 20 operators")
    for proto, problem in cases:
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


QUANTIZED = node("QuantizeLinear", ["x", "s", "z"], ["q"])
REAL = node("DequantizeLinear", ["p", "t", "z"], ["y"])
SCALES = {"s": np.float32(0.047), "z": np.uint8(120), "t": np.float32(0.1)}


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


@pytest.mark.parametrize("turned", [0, 1])
def test_outputs_of_a_quantised_product_have_a_scale_and_a_zero_point_each(equal: Equal, turned: int) -> None:
    weights = {"w": kernel(4, 5).view(np.uint8), "ws": np.linspace(0.01, 0.05, 5, dtype="float32")}
    weights |= {"w": weights["w"].T.copy()} if turned else {}
    inputs = ["q", "s", "z", "w", "ws", "wz", "", "t", "z"]
    product = node("QGemm", inputs, ["p"], domain="com.microsoft", transB=turned)
    equal(model([QUANTIZED, product, REAL], wz=np.uint8([100, 120, 128, 130, 150]), **weights, **SCALES))


def test_integers_are_convolved_and_scaled_as_dynamic_quantisation_does(equal: Equal) -> None:
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("ConvInteger", ["q", "w", "z"], ["sums"], group=3),
        node("Cast", ["sums"], ["reals"], to=FLOAT),
        node("Mul", ["reals", "s"], ["y"]),
    ]
    equal(model(nodes, inputs=[IMAGE], w=kernel(3, 1, 3, 3)))


@pytest.mark.parametrize("cast", [True, False])
def test_integers_are_multiplied_exactly_where_their_sums_are_integers(equal: Equal, cast: bool) -> None:
    """Sums beyond 2**24, which float32 has not, and such as are scaled in float32 next."""
    random = np.random.default_rng(0)
    rows, weights = (random.integers(128, 256, shape).astype(np.uint8) for shape in ((3, 2048), (2048, 4)))
    known = rows.astype(np.int32) @ weights.astype(np.int32) - np.arange(12, dtype=np.int32).reshape(3, 4)
    nodes = [
        node("MatMulInteger", ["rows", "weights"], ["sums"]),
        node("Sub", ["sums", "known"], ["left"]),
        node("Cast", ["sums" if cast else "left"], ["reals"], to=FLOAT),
        node("Add", ["reals", "x"], ["y"]),
    ]
    equal(model(nodes[:1] + nodes[1 + cast :], rows=rows, weights=weights, **({} if cast else {"known": known})))


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
