"""What every rewriting of an ONNX graph needs: new operators and constants, attributes, and the sizes of tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import count
from math import prod
from typing import Any

import numpy as np

DEFAULT = ("", "ai.onnx")
"""The names of ONNX's own operators' domain."""
FEW = 4096
"""Elements of a tensor up to which it may say something about sizes, and may be computed before the import."""


class GraphWriter:
    """Operators and constants that are added to an ONNX graph.

    Attributes:
        nodes: in order.
        values: the constants by name.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix, self._count = prefix, count()
        self.nodes: list[Any] = []
        self.values: dict[str, np.ndarray] = {}
        self._once: dict[Any, str] = {}

    def constant(self, array: Any) -> str:
        """Add a constant; return its name."""
        name = self.fresh()
        self.values[name] = np.asarray(array)
        return name

    def number(self, value: float) -> str:
        """Add a constant that is one number of float32; return its name."""
        return self.constant(np.float32(value))

    def once(self, key: Any, array: Callable[[], Any]) -> str:
        """Return the name of a constant that several nodes read; it is computed for the first one."""
        if key not in self._once:
            self._once[key] = self.constant(array())
        return self._once[key]

    def reshaped(self, x: str, shape: Sequence[int]) -> str:
        """Add a reshape, and return the name of its result."""
        return self.op("Reshape", x, self.constant(np.array(shape, np.int64)))

    def sliced(self, x: str, axis: int, begin: int, end: int) -> str:
        """Add a slice along an axis, and return the name of its result."""
        return self.op("Slice", x, *(self.constant(np.array([one], np.int64)) for one in (begin, end, axis)))

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add an operator; return the name of its output."""
        name = output or self.fresh()
        self.node(kind, inputs, [name], **attributes)
        return name

    def node(self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        """Add an operator of several outputs, whose names are given."""
        from onnx import helper

        self.nodes.append(helper.make_node(operator, list(inputs), list(outputs), **attributes))

    def fresh(self) -> str:
        """Return a name that the graph does not have."""
        return f"{self._prefix}{next(self._count)}"

    def put(self, graph: Any, most: int | None = None) -> None:
        """Give a graph these operators in place of its own, and the constants that they read.

        Args:
            most: elements of a constant; larger ones become inputs of their size.
        """
        from onnx import helper, numpy_helper

        del graph.node[:], graph.value_info[:]  # the latter may name free sizes
        graph.node.extend(self.nodes)
        held = {tensor.name for tensor in graph.initializer}
        read = sorted(names_taken(*self.nodes) & self.values.keys() - held)
        for name in read:
            array = self.values[name]
            if most is None or array.size <= most:
                graph.initializer.append(numpy_helper.from_array(array, name))
            else:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))


def graphs_of(model: Any) -> Iterator[Any]:
    """Yield the graph of an ONNX model, its functions, and the graphs in the branches and loops of both."""
    pending = [model.graph, *model.functions]
    while pending:
        graph = pending.pop()
        yield graph
        pending += [inner for node in graph.node for inner in graphs_in(node)]


def graphs_in(node: Any) -> list[Any]:
    """Return the graphs of a node's branches, or of its loop."""
    return [
        graph
        for attribute in node.attribute
        for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
    ]


def tensors_of(model: Any) -> Iterator[Any]:
    """Yield every tensor that a model holds."""
    for graph in graphs_of(model):
        yield from getattr(graph, "initializer", ())  # a function has none
        for sparse in getattr(graph, "sparse_initializer", ()):
            yield from (sparse.values, sparse.indices)
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            yield from [*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])]


def opset_of(model: Any) -> int:
    """Return the version of ONNX's own operators in a model."""
    return max((one.version for one in model.opset_import if one.domain in DEFAULT), default=0)


def attributes_of(node: Any) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    from onnx.helper import get_attribute_value

    return {one.name: get_attribute_value(one) for one in node.attribute}


def named(inputs: Sequence[str], count: int) -> list[str]:
    """Return so many names of inputs, empty ones for those that are left out."""
    return [*inputs, *[""] * count][:count]


def infer_types(model: Any, shapes: Mapping[str, Sequence[int]], instead: GraphWriter | None = None) -> dict[str, Any]:
    """Return what ONNX infers of the types of tensors, by name, at fixed shapes of the inputs.

    Args:
        instead: has operators in place of the model's.
    """
    import onnx

    sized = onnx.ModelProto(ir_version=model.ir_version)
    sized.opset_import.extend(model.opset_import)
    sized.graph.name = "sized"
    held = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in held:
            sized.graph.input.add().CopyFrom(value)
    for value in sized.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    for tensor in model.graph.initializer:
        if prod(tensor.dims) <= FEW:
            sized.graph.initializer.append(tensor)
        else:  # its numbers are many, and say nothing about shapes
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            sized.graph.input.append(info)
    sized.graph.node.extend(model.graph.node)
    if instead is not None:
        instead.put(sized.graph, FEW)
    graph = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
    return {value.name: value.type.tensor_type for value in (*graph.input, *graph.value_info)}


def rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename what a graph in a node takes from outside."""
    own = {x.name for x in (*graph.input, *graph.initializer)} | {x for node in graph.node for x in node.output}
    outer = {old: new for old, new in names.items() if old not in own}
    for node in graph.node:
        node.input[:] = [outer.get(name, name) for name in node.input]
        for inner in graphs_in(node):
            rename(inner, outer)
    for output in graph.output:
        output.name = outer.get(output.name, output.name)


def sort_nodes(graph: Any) -> bool:
    """Put each node of an ONNX graph after those whose outputs it takes; return whether one was before them.

    Raises:
        ValueError: a node takes what follows from its own output.
    """
    makers = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
    needs = {
        number: {makers[name] for name in names_taken(node) if name in makers} for number, node in enumerate(graph.node)
    }
    if all(maker < number for number, own in needs.items() for maker in own):
        return False
    sorter, order = TopologicalSorter(needs), list[int]()
    try:
        sorter.prepare()
    except CycleError as error:
        node = graph.node[error.args[1][0]]
        name = node.name or next(iter(node.output), "")
        raise ValueError(f"node {name!r} takes what follows from its own output") from error
    ready = sorted(sorter.get_ready())
    while ready:  # in the file's order as far as can be
        order.append(heappop(ready))
        sorter.done(order[-1])
        for number in sorter.get_ready():
            heappush(ready, number)
    nodes = [type(graph.node[number]).FromString(graph.node[number].SerializeToString()) for number in order]
    del graph.node[:]
    graph.node.extend(nodes)
    return True


def names_taken(*nodes: Any) -> set[str]:
    """Return the names that nodes take, and the graphs in them; not those that these graphs make themselves."""
    names = {name for node in nodes for name in node.input}
    for graph in (graph for node in nodes for graph in graphs_in(node)):
        taken = names_taken(*graph.node) | {output.name for output in graph.output}
        own = {value.name for value in (*graph.input, *graph.initializer)}
        names |= taken - own.union(*(node.output for node in graph.node))
    return names
