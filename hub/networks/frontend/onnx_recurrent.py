"""TVM's importer of ONNX files with recurrent layers, which it lacks, and with bounds in operators of Relax."""

from collections.abc import Mapping, Sequence
from math import inf, isnan
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.ir.expr import GenericConst

from ..transform.recurrence import KINDS, marker
from .onnx_graph import DEFAULT, GraphWriter, attributes_of, infer_types, opset_of

# Kinds, and the activations that ONNX takes where a node names none. Others are left to TVM's importer, which refuses.
_LAYERS = {
    "LSTM": ("iofg", ["Sigmoid", "Tanh", "Tanh"]),
    "GRU": ("zrn", ["Sigmoid", "Tanh"]),
    "RNN": ("tanh", ["Tanh"]),
}
_RELU = ["Relu"]  # which an RNN may have instead
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_LEAST_OPSET = 10  # from which on `Slice` takes its bounds as inputs
_OPERATOR = "TchubRecurrence"


def imported(model: Any, shapes: Mapping[str, Sequence[int]]) -> IRModule:
    """Return the Relax module of an ONNX model whose recurrent layers `with_recurrences` has written."""
    # Which needs the package `onnx`, an extra.
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    class Importer(ONNXGraphImporter):
        """TVM's importer, with one operator more, and bounds as operators whose layout Relax can infer."""

        def _check_for_unsupported_ops(self, graph: Any) -> None:
            rest = type(graph)()
            for name in sorted({node.op_type for node in graph.node} - {_OPERATOR}):
                rest.node.add(op_type=name)
            super()._check_for_unsupported_ops(rest)

        def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
            if op_name == "Clip" and (clipped := _clipped(self.bb, inputs, attrs)) is not None:
                return clipped
            if op_name != _OPERATOR:
                return super()._convert_operator(op_name, inputs, attrs, opset)
            projected, recurrent, bias, *states = inputs
            kind, backwards = attrs["kind"].decode(), bool(attrs["backwards"])
            return self.bb.emit(marker(self.bb.normalize(projected), recurrent, bias, states, kind, backwards))

    importer = Importer({name: [*shape] for name, shape in shapes.items()}, "float32")
    return importer.from_onnx(model.graph, opset_of(model) or 1)


def _clipped(builder: Any, inputs: Any, attrs: Mapping[str, Any]) -> Any:
    """Return a tensor within bounds that are numbers of the file, or None where they are results."""
    x, *bounds = inputs[0], inputs[1], inputs[2]
    numbers = [attrs.get("min"), attrs.get("max")]  # which they were before opset 11
    if any(one is not None and not isinstance(one, GenericConst) for one in bounds):
        return None
    for at, one in enumerate(bounds):
        if one is not None:
            numbers[at] = one.value.numpy().item()
    limits = (relax.op.maximum, -inf), (relax.op.minimum, inf)
    for number, (limit, nothing) in zip(numbers, limits, strict=True):
        if number is not None and not isnan(number) and number != nothing:
            x = builder.emit(limit(x, relax.const(number, x.ty.dtype)))
    return x


def with_recurrences(model: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """Return an ONNX model whose recurrent layers are products and `recurrence`; itself where it has none.

    Left as they are: layers in branches and loops, with a length for each sequence, peepholes, clipping, or other
    activations than usual.

    Args:
        model: stays as it is.
        shapes: of its inputs, by name.
    """
    import onnx

    if opset_of(model) < _LEAST_OPSET or not any(_is_plain(node) for node in model.graph.node):
        return model
    types = infer_types(model, shapes)
    writer = GraphWriter("tchub_recurrent_")
    for node in model.graph.node:
        sequence = types.get(node.input[0]) if _is_plain(node) else None
        sizes = [dim.dim_value for dim in sequence.shape.dim] if sequence is not None else []
        if sequence is None or len(sizes) != 3 or not all(sizes[:2]):
            writer.nodes.append(node)
        else:
            _Layer(node, sizes, onnx.helper.tensor_dtype_to_np_dtype(sequence.elem_type), writer).write()
    result = onnx.ModelProto()
    result.CopyFrom(model)
    writer.put(result.graph)
    return result


def _is_plain(node: Any) -> bool:
    """Return whether a node is a recurrent layer that `_Layer` writes."""
    if node.op_type not in _LAYERS or node.domain not in DEFAULT:
        return False
    facts = attributes_of(node)
    usual = _LAYERS[node.op_type][1] * len(_DIRECTIONS[facts.get("direction", b"forward").decode()])
    known = [[], usual, *([_RELU * (len(usual))] if node.op_type == "RNN" else [])]
    has_lengths, has_peepholes = any(node.input[4:5]), any(node.input[7:8])
    odd = has_lengths or has_peepholes or "clip" in facts or facts.get("input_forget")
    return not odd and _activations(facts) in known


def _activations(facts: Mapping[str, Any]) -> list[str]:
    return [name.decode() for name in facts.get("activations", ())]


class _Layer:
    """A recurrent layer as operators; names follow ONNX's specification of `LSTM`, `GRU` and `RNN`.

    Args:
        sizes: of its sequence `X`: steps and batch, or the batch first where the node's `layout` is 1.
        writer: takes the operators and constants.
    """

    def __init__(self, node: Any, sizes: Sequence[int], dtype: np.dtype[Any], writer: GraphWriter) -> None:
        facts = attributes_of(node)
        self._node, self._dtype, self._writer, self._op = node, dtype, writer, writer.op
        self._batch_first = bool(facts.get("layout"))
        self._steps, self._batch = (sizes[1], sizes[0]) if self._batch_first else (sizes[0], sizes[1])
        self._hidden, self._kind = facts["hidden_size"], _LAYERS[node.op_type][0]
        self._directions = _DIRECTIONS[facts.get("direction", b"forward").decode()]
        if _activations(facts) == _RELU * len(self._directions):
            self._kind = "relu"
        if self._kind == "zrn" and not facts.get("linear_before_reset"):
            self._kind += "_reset_before"

    def write(self) -> None:
        """Write the layer, and the node's outputs."""
        count, gates = len(self._directions), KINDS[self._kind]
        weights = self._op("Transpose", self._node.input[1], perm=[2, 0, 1])
        weights = self._shaped(weights, -1, count * gates * self._hidden)
        projected = self._op("MatMul", self._turned(self._node.input[0]), weights)
        bias, inner = self._biases()
        projected = self._op("Add", projected, bias) if bias else projected
        projected = self._shaped(projected, self._steps, self._batch, count, gates, self._hidden)
        recurrent = self._shaped(self._node.input[2], count, gates, self._hidden, self._hidden)
        zeros = self._writer.constant(np.zeros((count, self._batch, self._hidden), self._dtype))
        states = [self._turned(name) if (name := self._input(at)) else zeros for at in (5, 6)]
        states = states[: 2 if self._node.op_type == "LSTM" else 1]
        outputs = [self._writer.fresh() for _ in states]
        facts = {"kind": self._kind, "backwards": int(self._directions == (True,))}
        self._writer.node(_OPERATOR, [projected, recurrent, inner, *states], outputs, **facts)
        lasts = [
            self._part(self._part(outputs[0], 0, 0 if backwards else self._steps - 1), 2, d)
            for d, backwards in enumerate(self._directions)
        ]
        last = self._shaped(self._op("Concat", *lasts, axis=2), self._batch, count, self._hidden)
        last = last if self._batch_first else self._op("Transpose", last, perm=[1, 0, 2])
        y = self._op("Transpose", outputs[0], perm=[1, 0, 2, 3] if self._batch_first else [0, 2, 1, 3])
        for name, value in zip(self._node.output, [y, last, *map(self._turned, outputs[1:])], strict=False):
            if name:
                self._op("Identity", value, output=name)

    def _biases(self) -> tuple[str, str]:
        """Return what is added to the projected inputs, an empty text for nothing, and the bias of `recurrence`."""
        count, gates, hidden = len(self._directions), KINDS[self._kind], self._hidden
        zeros = self._writer.constant(np.zeros((count, hidden), self._dtype))
        if not (bias := self._input(3)):
            return "", zeros
        wide = gates * hidden
        inputs, states = self._part(bias, 1, 0, wide), self._part(bias, 1, wide, wide)
        if self._kind != "zrn":
            return self._shaped(self._op("Add", inputs, states), count * wide), zeros
        candidate = self._part(states, 1, 2 * hidden, hidden)  # which is multiplied by the reset gate
        states = self._op("Concat", self._part(states, 1, 0, 2 * hidden), zeros, axis=1)
        return self._shaped(self._op("Add", inputs, states), count * wide), candidate

    def _input(self, position: int) -> str:
        """Return the name of an input; an empty text where the node has no such input."""
        return next(iter(self._node.input[position : position + 1]), "")

    def _turned(self, value: str) -> str:
        """Return a value with its first axes exchanged where the node has the batch first."""
        return self._op("Transpose", value, perm=[1, 0, 2]) if self._batch_first else value

    def _part(self, value: str, axis: int, start: int, size: int = 1) -> str:
        bounds = (start, start + size, axis)
        return self._op("Slice", value, *(self._writer.constant(np.array([n], np.int64)) for n in bounds))

    def _shaped(self, value: str, *shape: int) -> str:
        return self._op("Reshape", value, self._writer.constant(np.array(shape, np.int64)))
