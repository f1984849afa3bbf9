"""TVM's importer of ONNX files with recurrent layers, which it lacks, and with bounds in operators of Relax."""

from collections.abc import Mapping, Sequence
from math import inf, isnan
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.ir.expr import GenericConst

from ....zoo.errors import last_line
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
_LENGTHS_OPSET = 11  # from which on there is `GatherElements`
# What the gates are given at a step behind a sequence's end: an LSTM keeps its cell and gives 0, a GRU keeps its state.
_SHUT = 1e4
_HELD = {"iofg": (-_SHUT, -_SHUT, _SHUT, 0.0), "zrn": (_SHUT, 0.0, 0.0), "tanh": (0.0,), "relu": (0.0,)}
_OPERATOR = "TchubRecurrence"
RECURRENT_REMEDIES = dict.fromkeys(
    _LAYERS,
    "export recurrent layers outside of branches, at opset 10 or newer, without clipping and peepholes, with the usual "
    "activations; with a length for each sequence at opset 11 or newer, reversed layers without initial states",
)
"""What to do about layers that `with_recurrences` leaves as they are, and that TVM's importer refuses."""


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
            if op_name == "Cast" and (whole := _whole(self.bb, inputs[0], attrs)) is not None:
                return whole
            if op_name != _OPERATOR:
                try:
                    return super()._convert_operator(op_name, inputs, attrs, opset)
                except Exception as error:  # of many kinds, and most do not name the operator
                    raise ValueError(f"{op_name}: {last_line(error)}") from error
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


def _whole(builder: Any, x: Any, attrs: Mapping[str, Any]) -> Any:
    """Return floats as whole numbers, those of 8 and 16 bits modulo their range; None for another cast.

    ONNX leaves open what becomes of infinities and of what is beyond 32 bits. TVM's importer makes zeros of the former
    and takes the latter modulo, by a dozen operators.
    """
    from onnx.helper import tensor_dtype_to_np_dtype

    dtype = tensor_dtype_to_np_dtype(attrs["to"]).name
    narrow = dtype in ("int8", "uint8", "int16", "uint16")
    if isinstance(x, GenericConst) or not (narrow or dtype in ("int32", "int64")):
        return None
    if not str(getattr(getattr(x, "ty", None), "dtype", "")).startswith("float"):
        return None
    whole = builder.emit(relax.op.astype(x, "int32" if narrow else dtype))
    return builder.emit(relax.op.astype(whole, dtype)) if narrow else whole


def with_recurrences(model: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """Return an ONNX model whose recurrent layers are products and `recurrence`; itself where it has none.

    Left as they are: layers in branches and loops, with peepholes, clipping, or other activations than usual, and those
    that read sequences with a length each from the end, unless their states begin with zeros.

    Args:
        model: stays as it is.
        shapes: of its inputs, by name.
    """
    import onnx

    if opset_of(model) < _LEAST_OPSET or not any(_is_plain(node) for node in model.graph.node):
        return model
    types, constants = infer_types(model, shapes), _constants(model)
    writer = GraphWriter("tchub_recurrent_")
    for node in model.graph.node:
        sequence = types.get(node.input[0]) if _is_plain(node) else None
        sizes = [dim.dim_value for dim in sequence.shape.dim] if sequence is not None else []
        if sequence is None or len(sizes) != 3 or not all(sizes[:2]):
            writer.nodes.append(node)
            continue
        layer = _Layer(node, sizes, onnx.helper.tensor_dtype_to_np_dtype(sequence.elem_type), writer, constants)
        if layer.lengths and not (layer.begins_with_zeros and opset_of(model) >= _LENGTHS_OPSET):
            writer.nodes.append(node)
        else:
            layer.write()
    result = onnx.ModelProto()
    result.CopyFrom(model)
    writer.put(result.graph)
    return result


def _constants(model: Any) -> dict[str, np.ndarray]:
    """Return what a model's recurrent layers read as lengths and states, where it is known."""
    from onnx import numpy_helper

    read = {name for node in model.graph.node if node.op_type in _LAYERS for name in node.input[4:7]}
    known = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer if one.name in read}
    for node in model.graph.node:  # large states, of which the shape alone was computed
        if node.op_type == "ConstantOfShape" and node.output[0] in read:
            value = attributes_of(node).get("value")
            known[node.output[0]] = np.zeros(1) if value is None else numpy_helper.to_array(value)
    return known


def _is_plain(node: Any) -> bool:
    """Return whether a node is a recurrent layer that `_Layer` writes."""
    if node.op_type not in _LAYERS or node.domain not in DEFAULT:
        return False
    facts = attributes_of(node)
    usual = _LAYERS[node.op_type][1] * len(_DIRECTIONS[facts.get("direction", b"forward").decode()])
    known = [[], usual, *([_RELU * (len(usual))] if node.op_type == "RNN" else [])]
    odd = any(node.input[7:8]) or "clip" in facts or facts.get("input_forget")  # the first are peepholes
    return not odd and _activations(facts) in known


def _activations(facts: Mapping[str, Any]) -> list[str]:
    return [name.decode() for name in facts.get("activations", ())]


class _Layer:
    """A recurrent layer as operators; names follow ONNX's specification of `LSTM`, `GRU` and `RNN`.

    Args:
        sizes: of its sequence `X`: steps and batch, or the batch first where the node's `layout` is 1.
        writer: takes the operators and constants.
        constants: lengths and states that are known.

    Attributes:
        lengths: the name of the sequences' lengths, or an empty text where all have as many steps as there are.
        begins_with_zeros: whether steps behind a sequence's end leave the states as they are, from either side.
    """

    def __init__(
        self, node: Any, sizes: Sequence[int], dtype: np.dtype[Any], writer: GraphWriter,
        constants: Mapping[str, np.ndarray],
    ) -> None:  # fmt: skip
        facts = attributes_of(node)
        self._node, self._dtype, self._writer, self._op = node, dtype, writer, writer.op
        self._batch_first = bool(facts.get("layout"))
        self._steps, self._batch = (sizes[1], sizes[0]) if self._batch_first else (sizes[0], sizes[1])
        self._hidden, self._kind = facts["hidden_size"], _LAYERS[node.op_type][0]
        self._directions = _DIRECTIONS[facts.get("direction", b"forward").decode()]
        if _activations(facts) == _RELU * len(self._directions):
            self._kind = "relu"
        self._held = _HELD[self._kind]
        state, self.lengths = self._input(5), self._input(4)
        zeros = not state or (state in constants and not constants[state].any())
        self.begins_with_zeros = zeros or self._kind == "zrn" or self._directions == (False,)
        if self.lengths in constants and (constants[self.lengths] >= self._steps).all():
            self.lengths = ""
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
        inside = self._inside() if self.lengths else ""
        if inside:
            held = self._writer.constant(np.array(self._held, self._dtype)[:, None])
            projected = self._op("Where", self._shaped(inside, self._steps, self._batch, 1, 1, 1), projected, held)
        recurrent = self._shaped(self._node.input[2], count, gates, self._hidden, self._hidden)
        zeros = self._writer.constant(np.zeros((count, self._batch, self._hidden), self._dtype))
        states = [self._turned(name) if (name := self._input(at)) else zeros for at in (5, 6)]
        states = states[: 2 if self._node.op_type == "LSTM" else 1]
        outputs = [self._writer.fresh() for _ in states]
        facts = {"kind": self._kind, "backwards": int(self._directions == (True,))}
        self._writer.node(_OPERATOR, [projected, recurrent, inner, *states], outputs, **facts)
        if inside:
            inside, nothing = self._shaped(inside, self._steps, self._batch, 1, 1), np.zeros((), self._dtype)
            outputs[0] = self._op("Where", inside, outputs[0], self._writer.constant(nothing))
            for cell in outputs[1:]:
                some = self._op("Greater", self.lengths, self._writer.constant(np.int32(0)))
                some = self._shaped(some, 1, self._batch, 1)
                outputs[1:] = [self._op("Where", some, cell, self._writer.constant(nothing))]
        ends = self._part(outputs[0], 0, self._steps - 1) if not inside else self._ends(outputs[0])
        sides = [self._part(outputs[0], 0, 0) if backwards else ends for backwards in self._directions]
        lasts = [self._part(side, 2, d) for d, side in enumerate(sides)]
        last = self._shaped(self._op("Concat", *lasts, axis=2), self._batch, count, self._hidden)
        last = last if self._batch_first else self._op("Transpose", last, perm=[1, 0, 2])
        y = self._op("Transpose", outputs[0], perm=[1, 0, 2, 3] if self._batch_first else [0, 2, 1, 3])
        for name, value in zip(self._node.output, [y, last, *map(self._turned, outputs[1:])], strict=False):
            if name:
                self._op("Identity", value, output=name)

    def _inside(self) -> str:
        """Return for each step of each sequence whether it is one of the sequence's own."""
        steps = self._writer.constant(np.arange(self._steps, dtype="int32")[:, None])
        return self._op("Less", steps, self._shaped(self.lengths, 1, self._batch))

    def _ends(self, states: str) -> str:
        """Return the states of each sequence's last step; zeros, as behind it, for a sequence of none."""
        last = self._op("Sub", self.lengths, self._writer.constant(np.int32(1)))
        last = self._op("Max", last, self._writer.constant(np.int32(0)))
        last = self._shaped(self._op("Cast", last, to=7), 1, self._batch, 1, 1)
        shape = np.array([1, self._batch, len(self._directions), self._hidden], np.int64)
        return self._op("GatherElements", states, self._op("Expand", last, self._writer.constant(shape)), axis=0)

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
        return self._writer.sliced(value, axis, start, start + size)

    def _shaped(self, value: str, *shape: int) -> str:
        return self._writer.reshaped(value, shape)
