"""Inputs of ONNX files: their free sizes, those that a caller fixes, and example values that the network can take."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import NetworkImportError
from .onnx_graph import attributes_of, graphs_of, sort_nodes
from .shapes import Shapes
from .signature import TensorSpec

_TYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "bfloat16")
# What exporters write for each size that they do not know, e.g. Paddle's: two such sizes may differ.
_UNNAMED = ("", "?", "-1", "None")
# Operators whose first result holds the numbers of their first input, or most of them.
_KEEPING = (
    *("Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "TopK", "Transpose"),
    "Unsqueeze",
)
# By operator and input that chooses rows, the input that they are chosen of.
_TABLES = {
    ("Gather", 1): 0, ("GatherBlockQuantized", 1): 0,
    ("EmbedLayerNormalization", 0): 2, ("EmbedLayerNormalization", 1): 4,
    ("QEmbedLayerNormalization", 0): 2, ("QEmbedLayerNormalization", 1): 4,
}  # fmt: skip
_COMPARING = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
# Operators whose first result is a part of their first input, in its order.
_MOVING = ("Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_IMAGE = 3  # axes of what is an image where it has 8 bits
# Attention of ONNX Runtime's own, with the inputs that are keys and values of earlier steps.
_PASTS = {"GroupQueryAttention": (3, 4), "MultiHeadAttention": (6, 7), "Attention": (4,)}
_RECURRENT, _LENGTHS = ("LSTM", "GRU", "RNN"), 4  # which of their inputs has a length for each sequence


@dataclass(frozen=True)
class OnnxInput:
    """An input of an ONNX file that is not a weight.

    Attributes:
        shape: sizes; a text for one that is free.
        rows: how many different numbers it has, from 0, where it chooses rows of a table or classes; 0 else.
        counts: it holds the length of each sequence.
        whole: it is a mask whose sum is the length of a sequence; what is behind that is not defined.
        past: it is keys or values of earlier steps.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any]
    rows: int = 0
    counts: bool = False
    whole: bool = False
    past: bool = False

    @property
    def is_switch(self) -> bool:
        """True for one whole number or truth value."""
        return all(size == 1 for size in self.shape) and self.dtype.kind in "iub"

    def example(self, spec: TensorSpec, steps: int, rng: np.random.Generator) -> np.ndarray:
        """Return random values: rows of the table, lengths, true and false, or normal.

        Args:
            steps: of the longest sequence, 1 where that is not known; the first one has as many.
        """
        if self.counts:
            lengths = rng.integers((steps + 1) // 2, steps + 1, spec.shape)
            lengths.flat[:1] = steps
            return lengths.astype(self.dtype)
        if self.whole:
            return np.ones(spec.shape, self.dtype)
        if self.dtype.itemsize == 1 and self.dtype != bool and len(spec.shape) >= _IMAGE and not self.rows:
            limits = np.iinfo(self.dtype)
            return rng.integers(limits.min, limits.max + 1, spec.shape).astype(self.dtype)
        if self.dtype.kind in "iub" or self.rows:
            most = 2 if self.dtype == bool else self.rows or 2
            return rng.integers(0, most, spec.shape).astype(self.dtype if self.dtype.kind in "iub" else spec.computed)
        return rng.standard_normal(spec.shape).astype(spec.computed)


def inputs_of(model: Any) -> list[OnnxInput]:
    """Return the inputs of an ONNX model that are no weights, in its order.

    Raises:
        NetworkImportError: one has a data type that is not known, or no number of axes.
    """
    weights, uses = {tensor.name for tensor in model.graph.initializer}, _Uses(model)
    results = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        dtype = dtype_of(value) if value.type.HasField("tensor_type") else None
        if dtype is None or not tensor.HasField("shape") or dtype.name not in _TYPES:
            name = "strings" if dtype is not None and dtype.hasobject else str(dtype)
            raise NetworkImportError(
                f"input {value.name} is {f'of {name}' if dtype else 'no tensor'}, or has no shape",
                remedy=f"export it with tensors of {', '.join(_TYPES)} as inputs, with their number of axes",
                input=value.name,
            )
        names = [dim.dim_param for dim in tensor.shape.dim]
        names = [f"{value.name}.{axis}" if name in _UNNAMED else name for axis, name in enumerate(names)]
        shape = [
            dim.dim_value if dim.dim_value > 0 else name for dim, name in zip(tensor.shape.dim, names, strict=True)
        ]
        counts = len(shape) < 2 and dtype.kind == "i" and uses.as_lengths(value.name)
        whole = len(shape) > 1 and dtype.kind in "iu" and uses.as_whole(value.name)
        past = uses.as_past(value.name)
        results.append(OnnxInput(value.name, tuple(shape), dtype, uses.rows(value.name), counts, whole, past))
    return results


def dtype_of(value: Any) -> np.dtype[Any]:
    """Return the data type of an input or output of an ONNX model."""
    from onnx.helper import tensor_dtype_to_np_dtype

    return tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


class _Uses:
    """Find how a model uses the numbers of its inputs, also behind operators that only give them another shape."""

    def __init__(self, model: Any) -> None:
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._readers: dict[str, list[tuple[Any, int]]] = {}
        self._makers: dict[str, Any] = {}
        for node in (node for graph in graphs_of(model) for node in graph.node):
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self._constants[node.output[0]] = node.attribute[0].t
            self._makers |= dict.fromkeys(node.output, node)
            for position, name in enumerate(node.input):
                self._readers.setdefault(name, []).append((node, position))

    def rows(self, name: str) -> int:
        """Return how many rows or classes an input chooses one of, or 0 where it does not choose."""
        return min((rows for node, position in self._reading(name) if (rows := self._limit(node, position))), default=0)

    def _limit(self, node: Any, position: int) -> int:
        """Return how many numbers, from 0, an operator can take as an input; 0 where it can take any."""
        from onnx import numpy_helper

        if (at := _TABLES.get((node.op_type, position))) is not None and (table := self._table(node.input[at])):
            return table.dims[attributes_of(node).get("axis", 0)]
        if node.op_type not in ("Equal", "OneHot") or position > 1:
            return 0
        other = self._constants.get(node.input[1 - position])
        if other is None or (node.op_type == "Equal" and max(other.dims, default=1) < 3):  # compared with one of them
            return 0
        numbers = numpy_helper.to_array(other)
        if numbers.dtype.kind not in "iuf" or not np.isfinite(numbers).all():
            return 0
        return int(numbers.max(initial=0)) + (node.op_type == "Equal")

    def _table(self, name: str) -> Any:
        """Return the constant that an operator chooses rows of, which may be dequantised before; None for others."""
        node = self._makers.get(name)
        return self._constants.get(node.input[0] if node is not None and node.op_type == "DequantizeLinear" else name)

    def as_past(self, name: str) -> bool:
        """Return whether an input is nothing but keys or values of earlier steps, of which there may be none."""
        readers = self._readers.get(name, ())
        return bool(readers) and all(
            position in _PASTS.get(node.op_type, ())
            or (node.op_type == "Concat" and attributes_of(node).get("axis") in (2, -2))
            for node, position in readers
        )

    def as_whole(self, name: str) -> bool:
        """Return whether an input is a mask whose sum is the lengths that attention reads."""
        summed = any(node.op_type == "ReduceSum" for node, _ in self._reading(name))
        return summed and any(node.op_type == "GroupQueryAttention" for node in self._makers.values())

    def as_lengths(self, name: str) -> bool:
        """Return whether an input has the lengths of a recurrent layer's sequences, or a mask is made by it."""
        for node, position in self._reading(name):
            if node.op_type in _RECURRENT and position == _LENGTHS:
                return True
            if node.op_type in _COMPARING and self._is_range(node.input[1 - position]):
                return True
        return False

    def _is_range(self, name: str) -> bool:
        node = self._makers.get(name)
        while node is not None and node.op_type in _KEEPING:
            node = self._makers.get(node.input[0])
        return node is not None and node.op_type == "Range"

    def _reading(self, name: str) -> Iterator[tuple[Any, int]]:
        """Yield the operators that read the numbers of an input, each with the position where it does."""
        pending, known = [name], {name}
        while pending:
            for node, position in self._readers.get(pending.pop(), ()):
                yield node, position
                if position == 0 and node.op_type in _KEEPING and node.output[0] not in known:
                    known.add(node.output[0])
                    pending.append(node.output[0])


def examples(inputs: Sequence[OnnxInput], specs: Sequence[TensorSpec]) -> tuple[torch.Tensor, ...]:
    """Return example values, the same on each call.

    Args:
        specs: of the inputs at the sizes that were chosen.
    """
    rng, pairs = np.random.default_rng(0), [*zip(inputs, specs, strict=True)]
    arrays = [one.example(spec, _steps(one, spec, pairs) if one.counts else 1, rng) for one, spec in pairs]
    return tuple(map(torch.from_numpy, arrays))


def _steps(lengths: OnnxInput, spec: TensorSpec, inputs: Sequence[tuple[OnnxInput, TensorSpec]]) -> int:
    """Return how many steps the sequences have whose lengths an input holds; 1 where no input tells.

    They are the first or second axis of a sequence, beside that of the batch, and a free size before a fixed one. An
    initial state has the directions of its layer there, two of one layer.
    """
    batch, steps = lengths.shape[:1], dict[int | str, int]()
    for other, own in inputs:
        axes = [*zip(other.shape[:2], own.shape[:2], strict=True)]
        shared = [axis for axis in axes if axis[0] in batch] or [
            axis for axis in axes if axis[1] in (spec.shape or (1,))
        ]
        if len(axes) == 2 and shared:
            axes.remove(shared[0])
            steps |= dict(axes)
    free = [size for name, size in steps.items() if isinstance(name, str)]
    return min(free or [size for size in steps.values() if size > 2] or steps.values(), default=1)


def values_of(switches: Sequence[OnnxInput], given: Shapes, network: str) -> dict[str, int]:
    """Return the value of each input that one was given for.

    Raises:
        NetworkImportError: several were, or one that its type has not.
    """
    values = {}
    for one in switches:
        if one.name in given:
            numbers = given[one.name]
            most = 1 if one.dtype == bool else np.iinfo(one.dtype).max
            if len(numbers) != 1 or not 0 <= numbers[0] <= most:
                raise NetworkImportError(
                    f"input {one.name} of {network} is one {one.dtype}, and was given {', '.join(map(str, numbers))}",
                    remedy=f"give one number up to {most}, and tune once for each that you need",
                    input=one.name,
                )
            values[one.name] = numbers[0]
    return values


def with_values(model: Any, values: Mapping[str, int]) -> Any:
    """Return an ONNX model with constants in place of some inputs."""
    import onnx

    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.ir_version = max(result.ir_version, 4)  # before that a constant had to be an input
    for value in [one for one in result.graph.input if one.name in values]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = np.full(shape, values[value.name], dtype_of(value))
        result.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        result.graph.input.remove(value)
    return result


def shake_from_integers(model: Any, images: Collection[str], size: float) -> bool:
    """Change the floats that integers become by random shares of themselves, in place; return whether there are any.

    They are the rows of tables, and images that are cast or dequantised. Zeros and infinities stay.

    Args:
        images: inputs that are numbers of 8 bits, and no masks or the like.
        size: the standard deviation of the shares.
    """
    from onnx import TensorProto, helper

    graph, floats = model.graph, (TensorProto.FLOAT, TensorProto.DOUBLE)
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    constants, integers = set(kinds), set(images)
    shaken = list[Any]()
    for node in graph.node:
        name, source, result = node.op_type, next(iter(node.input), ""), next(iter(node.output), "")
        real = name == "EmbedLayerNormalization"
        if name == "Constant":
            kinds[result] = getattr(attributes_of(node).get("value"), "data_type", 0)
            constants.add(result)
        elif name == "Gather" and source in constants and node.input[1] not in constants:
            real = kinds[source] in floats
            integers |= set() if real else {result}
        elif name == "DequantizeLinear" and source in constants:
            kinds[result] = TensorProto.FLOAT
            constants.add(result)
        elif name in ("Cast", "DequantizeLinear"):
            real = source in integers and attributes_of(node).get("to", TensorProto.FLOAT) in floats
            integers |= {result} if source in integers and not real else set()
        elif name in _MOVING and source in integers:
            integers.add(result)
        if real:
            node.output[0], share = f"{result} exactly", f"{result} share"
            seed = float(len(shaken))
            noise = helper.make_node("RandomNormalLike", [node.output[0]], [share], mean=1.0, scale=size, seed=seed)
            shaken.append(noise)
            shaken.append(helper.make_node("Mul", [node.output[0], share], [result]))
    graph.node.extend(shaken)
    sort_nodes(graph)
    return bool(shaken)
