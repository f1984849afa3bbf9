"""Operators of ONNX that TVM's importer lacks or has otherwise: each computes what ONNX Runtime does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from onnx_kit import FLOAT, IMAGE, INT64, MATRIX, Equal, Info, checker, kernel, model, node
from relax_kit import compute, prepare
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.sources import open_network


@pytest.fixture
def equal(tmp_path: Path) -> Equal:
    return checker(tmp_path)


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


@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.INT32, INT64])
def test_floats_become_whole_numbers_by_as_few_operators_as_there_are(equal: Equal, kind: int) -> None:
    nodes = [node("Mul", ["x", "w"], ["z"]), node("Cast", ["z"], ["i"], to=kind), node("Cast", ["i"], ["y"], to=FLOAT)]
    script = equal(model(nodes, w=np.float32(200.7))).imported().script()
    assert "R.astype" in script
    assert "R.isfinite" not in script


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


@pytest.mark.parametrize("kind", ["int4", "uint4", "uint8"])
@pytest.mark.parametrize("block", [0, 3])
def test_weights_may_share_a_byte_and_have_a_scale_for_each_block(equal: Equal, kind: str, block: int) -> None:
    """As ONNX Runtime's tools quantise them without an operator of its own; of the last block a part is left."""
    codes, zeros = np.abs(kernel(4, 6)) % 8, np.abs(kernel(2 if block else 1, 6)) % 8
    scales = np.linspace(0.1, 1.0, zeros.size, dtype="float32").reshape(zeros.shape)
    dtype = getattr(ml_dtypes, kind, kind)
    weights = {"w": codes.astype(dtype), "s": scales, "z": zeros.astype(dtype)}
    if not block:
        weights |= {name: weights[name][0] for name in ("s", "z")}
    facts = {"block_size": block, "axis": 0} if block else {"axis": 1}
    nodes = [node("DequantizeLinear", [*weights], ["real"], **facts), node("MatMul", ["x", "real"], ["y"])]
    network = equal(model(nodes, opset=21, **weights), atol=1e-5)
    assert "dequantize" not in network.imported().script() or kind == "uint8"


@pytest.mark.parametrize("facts", [{"axis": 1}, {}])
def test_rows_that_a_constant_chooses_have_a_fixed_number(equal: Equal, facts: Mapping[str, Any]) -> None:
    network = equal(
        model([node("Compress", ["x", "c"], ["y"], **facts)], {"y": 2 if facts else 1}, c=[False, True, True])
    )
    assert network.signature().outputs[0].shape == ((3, 2) if facts else (2,))


def test_a_choice_of_more_rows_than_there_are_stops_at_the_last(equal: Equal) -> None:
    equal(model([node("Compress", ["x", "c"], ["y"], axis=0)], c=[True, False, True, True, True]))


@pytest.mark.parametrize("block", [1 << 40, 3, -2])
def test_scales_of_another_number_of_blocks_are_refused(tmp_path: Path, block: int) -> None:
    """However large a file says that they are."""
    weights = {"w": kernel(4, 6).astype("int8"), "s": np.ones((4, 6), "float32"), "z": np.zeros((4, 6), "int8")}
    nodes = [node("DequantizeLinear", [*weights], ["real"], block_size=block, axis=0)]
    onnx.save(model([*nodes, node("MatMul", ["x", "real"], ["y"])], opset=21, **weights), tmp_path / "net.onnx")
    with pytest.raises(NetworkImportError, match="DequantizeLinear"):
        open_network(tmp_path / "net.onnx").imported()


@pytest.mark.parametrize("known", [True, False])
def test_a_region_that_may_be_an_input_is_resized(equal: Equal, known: bool) -> None:
    facts = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    resize = node("Resize", ["x", "region", "none", "sizes"], ["y"], **facts)
    constants: dict[str, Any] = {"none": np.float32([]), "sizes": np.array([1, 3, 4, 5])}
    if known:
        constants["region"] = np.float32([0, 0, 0.1, 0.2, 1, 1, 0.9, 0.7])
    inputs = [IMAGE] if known else [IMAGE, Info("region", FLOAT, [8])]
    equal(model([resize], inputs=inputs, **constants), atol=1e-5)


def test_an_operator_that_cannot_be_translated_is_named(tmp_path: Path) -> None:
    slices = node("Slice", ["x", "one", "one"], ["y"])
    onnx.save(model([slices], one=np.int64(1)), tmp_path / "net.onnx")
    with pytest.raises(NetworkImportError, match="cannot import net: Slice: Cannot cast"):
        open_network(tmp_path / "net.onnx").imported()


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
