"""Models of scikit-learn as ONNX files: scalers, encoders of numbers and linear models, beside ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_kit import FLOAT, INT64, MATRIX, Equal, Info, X, checker, model, node
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.sources import open_network

STEPS = {
    "Scaler": {"offset": [0.1, 0.2, -0.3, 4.0], "scale": [1.0, 2.0, 0.5, -1.0]},
    "Normalizer": {"norm": "L2"},
    "Binarizer": {"threshold": 0.3},
    "Imputer": {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": 0.0},
    "LinearRegressor": {"coefficients": [*MATRIX.ravel().tolist()], "intercepts": [0.1, 0.2, 0.3, 0.4], "targets": 4},
}
SCORES = {"coefficients": MATRIX[:3].ravel().tolist(), "intercepts": [0.5, 0.0, -0.5], "multi_class": 1}


def learned(kind: str, inputs: Sequence[str], outputs: Sequence[str], **facts: Any) -> Any:
    return node(kind, inputs, outputs, domain="ai.onnx.ml", **facts)


def file(nodes: Sequence[Any], outputs: Sequence[Any], **facts: Any) -> Any:
    proto = model(nodes, {}, **facts)
    proto.graph.output.extend(outputs)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return proto


@pytest.fixture
def equal(tmp_path: Path) -> Equal:
    return checker(tmp_path)


@pytest.mark.parametrize("opset", [11, 18])
def test_steps_of_a_pipeline_follow_each_other(equal: Equal, opset: int) -> None:
    names = ["x", "a", "b", "c", "d", "y"]
    nodes = [
        learned(kind, [source], [result], **facts)
        for (kind, facts), source, result in zip(STEPS.items(), names[:-1], names[1:], strict=True)
    ]
    equal(file(nodes, [Info("b", FLOAT, [3, 4]), Info("y", FLOAT, [3, 4])], opset=opset))


@pytest.mark.parametrize("norm", ["L1", "MAX"])
def test_rows_are_divided_by_a_norm(equal: Equal, norm: str) -> None:
    equal(file([learned("Normalizer", ["x"], ["y"], norm=norm)], [Info("y", FLOAT, [3, 4])]))


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_a_classifier_has_a_label_and_scores(equal: Equal, transform: str) -> None:
    facts = {"classlabels_ints": [7, 1, 5], "post_transform": transform} | SCORES
    outputs = [Info("label", INT64, [3]), Info("scores", FLOAT, [3, 3])]
    equal(file([learned("LinearClassifier", ["x"], ["label", "scores"], **facts)], outputs))


def test_a_label_is_chosen_of_the_classes_by_a_feature_extractor(equal: Equal) -> None:
    nodes = [node("ArgMax", ["x"], ["at"], axis=1), learned("ArrayFeatureExtractor", ["classes", "at"], ["y"])]
    equal(file(nodes, [Info("y", INT64, [1, 3])], classes=np.array([4, 2, 9, 7])))
    equal(file([learned("ArrayFeatureExtractor", ["x", "at"], ["y"])], [Info("y", FLOAT, [3, 2])], at=np.array([3, 1])))


TABLES: dict[str, Mapping[str, Any]] = {
    "whole numbers": {"keys_int64s": [0, 1, 3], "values_floats": [0.5, 2.0, 4.0], "default_float": -3.0},
    "to whole numbers": {"keys_int64s": [1, 2], "values_int64s": [30, 40]},
}


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_numbers_are_categories_or_look_others_up(equal: Equal, table: Mapping[str, Any], opset: int) -> None:
    kind = FLOAT if "values_floats" in table else INT64
    nodes = [
        node("Abs", ["i"], ["j"]),
        node("Mod", ["j", "four"], ["k"]),
        learned("LabelEncoder", ["k"], ["y"], **table),
        learned("OneHotEncoder", ["k"], ["c"], cats_int64s=[0, 2, 3]),
        node("Reshape", ["c", "rows"], ["r"]),
        learned("Normalizer", ["r"], ["z"], norm="L1"),
    ]
    outputs, constants = [Info("y", kind, [5, 2]), Info("z", FLOAT, [5, 6])], {"rows": np.array([-1, 6])}
    equal(file(nodes, outputs, inputs=[Info("i", INT64, [5, 2])], opset=opset, four=np.int64(4), **constants))


def test_maps_and_strings_are_cut_off(equal: Equal) -> None:
    """As skl2onnx writes a classifier of named classes by default."""
    facts = {"classlabels_strings": ["a", "b", "c"], "post_transform": "SOFTMAX"} | SCORES
    nodes = [
        learned("LinearClassifier", ["x"], ["label", "scores"], **facts),
        node("Identity", ["label"], ["output_label"]),
        learned("ZipMap", ["scores"], ["probability"], classlabels_strings=["a", "b", "c"]),
    ]
    probability = onnx.ValueInfoProto(name="probability")
    probability.type.sequence_type.elem_type.map_type.key_type = TensorProto.STRING
    probability.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = FLOAT
    network = equal(file(nodes, [Info("output_label", TensorProto.STRING, [3]), probability]))
    assert str(network.signature()) == "(x: float32[3, 4]) -> float32[3, 3]"
    note = "maps of classes are tensors, and outputs of strings left out: probability, output_label"
    assert note in network.notes


def test_trees_and_strings_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(file([learned("TreeEnsembleRegressor", ["x"], ["y"])], [Info("y", FLOAT, [3, 1])]), path)
    with pytest.raises(NetworkImportError, match="cannot import net: TreeEnsembleRegressor") as caught:
        open_network(path).imported()
    assert caught.value.remedy.startswith("leave trees, kernel machines and strings to ONNX Runtime")
    text = file(
        [node("Identity", ["x"], ["y"])], [Info("y", FLOAT, [3, 4])], inputs=[X, Info("t", TensorProto.STRING, [3])]
    )
    onnx.save(text, path)
    with pytest.raises(NetworkImportError, match="input t is of strings"):
        open_network(path)


@pytest.mark.parametrize(
    ("operator", "facts"),
    [
        ("LabelEncoder", {"keys_floats": [float("nan"), 1.0], "values_floats": [7.0, 8.0]}),
        ("LinearRegressor", {"coefficients": [1.0] * 8}),
        ("LinearRegressor", {"coefficients": [1.0] * 4, "post_transform": "LOGISTIC"}),
        ("LinearRegressor", {"coefficients": [1.0] * 5}),
        ("Scaler", {"scale": [1.0]}),
    ],
    ids=["no number as a key", "targets that are not counted", "a transform", "a part of a row", "no offset"],
)
def test_what_onnx_runtime_takes_otherwise_is_refused(tmp_path: Path, operator: str, facts: dict[str, Any]) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(file([learned(operator, ["x"], ["y"], **facts)], [Info("y", FLOAT, [3, 1])]), path)
    with pytest.raises(NetworkImportError, match=f"cannot import net: {operator}"):
        open_network(path).imported()


def test_a_map_of_classes_needs_no_other_domain(equal: Equal) -> None:
    nodes = [
        learned("LinearClassifier", ["x"], ["label", "scores"], classlabels_strings=["a", "b", "c"], **SCORES),
        learned("ZipMap", ["scores"], ["probability"], classlabels_strings=["a", "b", "c"]),
    ]
    model = file(nodes, [Info("probability", FLOAT, [3, 3])])
    for one in [one for one in model.opset_import if one.domain == ""]:
        model.opset_import.remove(one)
    equal(model)
