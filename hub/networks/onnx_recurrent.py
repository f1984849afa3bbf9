"""Recurrent layers of ONNX files, step by step: TVM's importer has no `LSTM`, `GRU` and `RNN`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .onnx_graph import DEFAULT, GraphWriter, attributes_of, infer_types, opset_of

# Gates, and the activations that ONNX takes where a node names none. Others are left to TVM's importer, which refuses.
_LAYERS = {"LSTM": (4, ["Sigmoid", "Tanh", "Tanh"]), "GRU": (3, ["Sigmoid", "Tanh"]), "RNN": (1, ["Tanh"])}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_LEAST_OPSET = 10  # from which on `Slice` takes its bounds as inputs


def with_steps(model: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """Return an ONNX model whose recurrent layers are operators of each step; itself where it has none.

    The length of a sequence is known at fixed shapes alone, and a layer becomes as many steps. Left as they are: layers
    in branches and loops, with a length for each sequence, peepholes, clipping, or other activations than usual.

    Args:
        model: stays as it is.
        shapes: of its inputs, by name.
    """
    import onnx

    if opset_of(model) < _LEAST_OPSET or not any(_is_plain(node) for node in model.graph.node):
        return model
    types = infer_types(model, shapes)
    writer = GraphWriter("steps_")
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
    activations = [name.decode() for name in facts.get("activations", ())]
    has_lengths, has_peepholes = any(node.input[4:5]), any(node.input[7:8])
    odd = has_lengths or has_peepholes or "clip" in facts or facts.get("input_forget")
    return not odd and activations in ([], usual)


class _Layer:
    """A recurrent layer as operators; names follow ONNX's specification of `LSTM`, `GRU` and `RNN`.

    Args:
        sizes: of its sequence `X`: steps and batch, or the batch first where the node's `layout` is 1.
        writer: takes the operators and constants.
    """

    def __init__(self, node: Any, sizes: Sequence[int], dtype: np.dtype[Any], writer: GraphWriter) -> None:
        facts = attributes_of(node)
        self._node, self._dtype, self._op, self._constant = node, dtype, writer.op, writer.constant
        self._batch_first = bool(facts.get("layout"))
        self._length, self._batch = (sizes[1], sizes[0]) if self._batch_first else (sizes[0], sizes[1])
        self._hidden, self._gates = facts["hidden_size"], _LAYERS[node.op_type][0]
        self._directions = _DIRECTIONS[facts.get("direction", b"forward").decode()]
        self._reset_after = bool(facts.get("linear_before_reset"))

    def write(self) -> None:
        """Write all steps of all directions, and the node's outputs."""
        x = self._turned(self._node.input[0], [1, 0, 2])
        outputs, lasts = zip(*(self._direction(x, *one) for one in enumerate(self._directions)), strict=True)
        states = [self._op("Concat", *parts, axis=0) for parts in zip(*lasts, strict=True)]
        written = [self._turned(self._op("Concat", *outputs, axis=1), [2, 0, 1, 3])]
        written += [self._turned(state, [1, 0, 2]) for state in states]
        for name, value in zip(self._node.output, written, strict=False):
            if name:
                self._op("Identity", value, output=name)

    def _direction(self, x: str, number: int, backwards: bool) -> tuple[str, list[str]]:
        """Return the output `[steps, 1, batch, hidden]` of one direction, and its last states."""
        weights, recurrent, bias, h, c = (self._input(position, number) for position in (1, 2, 3, 5, 6))
        projected = self._op("MatMul", x, self._op("Transpose", weights, perm=[1, 0]))
        recurrent = self._op("Transpose", recurrent, perm=[1, 0])
        wide = self._gates * self._hidden
        if bias:
            projected = self._op("Add", projected, self._part(bias, 0, wide, 0))
            bias = self._part(bias, wide, 2 * wide, 0)
        zeros = self._constant(np.zeros((self._batch, self._hidden), self._dtype))
        state = [h or zeros, c or zeros][: 2 if self._node.op_type == "LSTM" else 1]
        outputs: dict[int, str] = {}
        for step in reversed(range(self._length)) if backwards else range(self._length):
            now = self._op("Gather", projected, self._constant(np.int64(step)), axis=0)
            state = getattr(self, f"_{self._node.op_type.lower()}")(now, recurrent, bias, *state)
            outputs[step] = self._shaped(state[0], 1, 1)
        return self._op("Concat", *(outputs[step] for step in range(self._length)), axis=0), [
            self._shaped(one, 1) for one in state
        ]

    def _lstm(self, now: str, recurrent: str, bias: str, h: str, c: str) -> list[str]:
        gates = self._op("Add", now, self._linear(h, recurrent, bias))
        i, o, f = (self._op("Sigmoid", self._gate(gates, k)) for k in range(3))
        new = self._op("Mul", i, self._op("Tanh", self._gate(gates, 3)))
        c = self._op("Add", self._op("Mul", f, c), new)
        return [self._op("Mul", o, self._op("Tanh", c)), c]

    def _gru(self, now: str, recurrent: str, bias: str, h: str) -> list[str]:
        update, wide = 2 * self._hidden, 3 * self._hidden
        split = [
            (self._part(recurrent, *ends, 1), bias and self._part(bias, *ends, 0))
            for ends in ((0, update), (update, wide))
        ]
        both = self._op("Sigmoid", self._op("Add", self._part(now, 0, update, 1), self._linear(h, *split[0])))
        z, r = self._gate(both, 0), self._gate(both, 1)
        if self._reset_after:
            hidden = self._op("Mul", r, self._linear(h, *split[1]))
        else:
            hidden = self._linear(self._op("Mul", r, h), *split[1])
        new = self._op("Tanh", self._op("Add", self._gate(now, 2), hidden))
        return [self._op("Add", new, self._op("Mul", z, self._op("Sub", h, new)))]

    def _rnn(self, now: str, recurrent: str, bias: str, h: str) -> list[str]:
        return [self._op("Tanh", self._op("Add", now, self._linear(h, recurrent, bias)))]

    def _linear(self, h: str, recurrent: str, bias: str) -> str:
        product = self._op("MatMul", h, recurrent)
        return self._op("Add", product, bias) if bias else product

    def _input(self, position: int, direction: int) -> str:
        """Return an input's part of a direction; an empty text where the node has no such input."""
        name = next(iter(self._node.input[position : position + 1]), "")
        if not name:
            return ""
        turned = self._turned(name, [1, 0, 2]) if position > 4 else name
        return self._op("Gather", turned, self._constant(np.int64(direction)), axis=0)

    def _turned(self, value: str, axes: list[int]) -> str:
        """Return a value with its first axes exchanged where the node has the batch first."""
        return self._op("Transpose", value, perm=axes) if self._batch_first else value

    def _gate(self, value: str, number: int) -> str:
        return self._part(value, number * self._hidden, (number + 1) * self._hidden, 1)

    def _part(self, value: str, start: int, end: int, axis: int) -> str:
        return self._op("Slice", value, *(self._constant(np.array([n], np.int64)) for n in (start, end, axis)))

    def _shaped(self, value: str, *ones: int) -> str:
        return self._op("Reshape", value, self._constant(np.array([*ones, self._batch, self._hidden], np.int64)))
