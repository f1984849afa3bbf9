"""Operators of ONNX's domain for classical machine learning, as skl2onnx writes them, in those that TVM has.

They are scalers, encoders of numbers and linear models. Trees, kernel machines and strings are left to ONNX Runtime.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from .onnx_graph import attributes_of, names_taken
from .onnx_operators import reduced

LEARNED = "ai.onnx.ml"
_FLOAT, _STRING = 1, 8  # ONNX's numbers of the types
_OPSET = 13
_TRANSFORMS = {b"NONE": (), b"LOGISTIC": ("Sigmoid",), b"SOFTMAX": ("Softmax",)}


def without_strings(model: Any) -> list[str]:
    """Cut off maps of classes and outputs of strings, in place, and the nodes that only they need.

    A map, which skl2onnx makes of probabilities by default, becomes a tensor with a column for each class.

    Returns:
        The names of the outputs that it changed.
    """
    graph, changed = model.graph, []
    for node in graph.node:
        if node.domain == LEARNED and node.op_type == "ZipMap":
            node.op_type, node.domain = "Identity", ""
            del node.attribute[:]
            changed.append(str(node.output[0]))
    for output in list(graph.output):
        if output.name in changed:
            output.type.tensor_type.elem_type = _FLOAT
        elif output.type.tensor_type.elem_type == _STRING and len(graph.output) > 1:
            changed.append(str(output.name))
            graph.output.remove(output)
    if changed:
        if not any(one.domain == "" for one in model.opset_import):  # that of `Identity`
            model.opset_import.add(domain="", version=_OPSET)
        needed = {str(output.name) for output in graph.output}
        for node in reversed(list(graph.node)):
            if needed.isdisjoint(node.output):
                graph.node.remove(node)
            else:
                needed |= names_taken(node)
        for tensor in [one for one in graph.initializer if one.data_type == _STRING and one.name not in needed]:
            graph.initializer.remove(tensor)
    return changed


def _floats(graph: Any, x: str) -> str:
    return x if graph.dtype(x) == _FLOAT else str(graph.op("Cast", x, to=_FLOAT))


def _array(graph: Any, facts: dict[str, Any], name: str) -> str:
    return str(graph.constant(np.float32(facts[name])))


def _scaled(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Subtract an offset from each column, and multiply by a scale."""
    facts = attributes_of(node)
    if not {"offset", "scale"} <= facts.keys():
        return None
    shifted = graph.op("Sub", _floats(graph, inputs[0]), _array(graph, facts, "offset"))
    return [graph.op("Mul", shifted, _array(graph, facts, "scale"))]


def _normalized(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Divide each row by its norm; rows of zeros stay."""
    x, dims = _floats(graph, inputs[0]), graph.dims(inputs[0])
    if dims is None or len(dims) > 2:
        return None
    kind = {b"L1": "ReduceL1", b"L2": "ReduceL2"}.get(attributes_of(node).get("norm", b"MAX"), "ReduceMax")
    norm = reduced(graph, kind, x, [-1])
    zero = graph.op("Equal", norm, graph.number(0))
    return [graph.op("Div", x, graph.op("Where", zero, graph.number(1), norm))]


def _imputed(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Replace a number, which may be NaN, by another for each column."""
    facts = attributes_of(node)
    if "imputed_value_floats" not in facts:
        return None
    x, replaced = inputs[0], facts.get("replaced_value_float", 0.0)
    missing = graph.op("IsNaN", x) if np.isnan(replaced) else graph.op("Equal", x, graph.number(replaced))
    return [graph.op("Where", missing, _array(graph, facts, "imputed_value_floats"), x)]


def _binary(graph: Any, node: Any, inputs: list[str]) -> list[str]:
    """Return 1 for numbers above a threshold, else 0."""
    above = graph.op("Greater", inputs[0], graph.number(attributes_of(node).get("threshold", 0.0)))
    return [graph.op("Cast", above, to=_FLOAT)]


def _columns(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Choose along the last axis; a vector has one row."""
    dims, rows = graph.dims(inputs[0]), graph.reshaped(inputs[1], [-1])
    if dims is None:
        return None
    x = graph.reshaped(inputs[0], [1, -1]) if len(dims) == 1 else inputs[0]
    return [graph.op("Gather", x, rows, axis=max(len(dims) - 1, 1))]


def _matches(graph: Any, x: str, keys: np.ndarray) -> str:
    """Compare each number with each key, along a new last axis."""
    from onnx.helper import np_dtype_to_tensor_dtype

    x = graph.op("Cast", x, to=np_dtype_to_tensor_dtype(keys.dtype))
    axis = graph.constant(np.array([-1], np.int64))
    wide = graph.op("Unsqueeze", x, axis) if graph.opset >= 13 else graph.op("Unsqueeze", x, axes=[-1])
    return str(graph.op("Equal", wide, graph.constant(keys)))


def _one_hot(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Return for each category whether it is the input's."""
    if (categories := attributes_of(node).get("cats_int64s")) is None:
        return None
    return [graph.op("Cast", _matches(graph, inputs[0], np.array(categories)), to=_FLOAT)]


def _looked_up(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Map numbers by a table; those that it does not have become one more value."""
    from onnx import numpy_helper

    facts, dims, sides = attributes_of(node), graph.dims(inputs[0]), list[np.ndarray]()
    for side in ("keys", "values"):
        lists = [np.array(facts[name], dtype) for name, dtype in _lists(side) if name in facts]
        tensors = [numpy_helper.to_array(facts[name]) for name in (f"{side}_tensor",) if name in facts]
        sides += [*lists, *tensors][:1]
    if dims is None or len(sides) < 2 or any(str(side.dtype) not in ("int32", "int64", "float32") for side in sides):
        return None
    keys, values = sides
    if np.isnan(keys).any():  # which only some versions of the operator match
        return None
    other: Any = facts.get("default_int64", -1) if values.dtype.kind == "i" else facts.get("default_float", -0.0)
    if "default_tensor" in facts:
        other = numpy_helper.to_array(facts["default_tensor"])
    matches = graph.op("Cast", _matches(graph, inputs[0], keys), to=_FLOAT)
    first = graph.op("Gather", graph.constant(values), graph.op("ArgMax", matches, axis=-1))
    known = graph.op("Greater", reduced(graph, "ReduceMax", matches, [-1]), graph.number(0))
    default = graph.constant(np.asarray(other, values.dtype).reshape(1))
    return [graph.reshaped(graph.op("Where", known, first, default), dims)]


def _lists(side: str) -> list[tuple[str, str]]:
    return [(f"{side}_int64s", "int64"), (f"{side}_floats", "float32")]


def _linear(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Return the scores of a linear model and, of a classifier, the class of the largest one before them."""
    facts, dims = attributes_of(node), graph.dims(inputs[0])
    transform = _TRANSFORMS.get(facts.get("post_transform", b"NONE"))
    labels, classifies = facts.get("classlabels_ints"), node.op_type == "LinearClassifier"
    if dims is None or len(dims) != 2 or transform is None:
        return None
    weights = np.array(facts["coefficients"], np.float32)
    rows = len(weights) // dims[1]
    if weights.size != rows * dims[1] or len(facts.get("intercepts", range(rows))) != rows:
        return None
    if not classifies and (rows != facts.get("targets", 1) or transform):  # which ONNX Runtime may leave out
        return None
    weights = weights.reshape(rows, dims[1])
    if classifies and (len(weights) < 2 or (graph.reads(node.output[:1]) and len(labels or ()) != len(weights))):
        return None  # one score for two classes, or classes that are strings
    scores = graph.op("MatMul", _floats(graph, inputs[0]), graph.constant(np.ascontiguousarray(weights.T)))
    if "intercepts" in facts:
        scores = graph.op("Add", scores, _array(graph, facts, "intercepts"))
    results = [graph.op(transform[0], scores) if transform else scores]
    if classifies:
        label = graph.op("ArgMax", scores, axis=1, keepdims=0) if labels else ""
        results.insert(0, graph.op("Gather", graph.constant(np.array(labels)), label) if label else "")
    return results


LEARNED_RULES: dict[str, Callable[[Any, Any, list[str]], list[str] | None]] = {
    "Scaler": _scaled, "Normalizer": _normalized, "Imputer": _imputed, "Binarizer": _binary,
    "ArrayFeatureExtractor": _columns, "OneHotEncoder": _one_hot, "LabelEncoder": _looked_up,
    "LinearClassifier": _linear, "LinearRegressor": _linear,
}  # fmt: skip
"""By the operator, what writes a node to a `_Fold`; None leaves it as it is, and it is refused."""
