"""Quantised operators of ONNX, written as operators on the real numbers or the whole numbers that theirs stand for."""

from math import prod
from typing import Any

import numpy as np

from .onnx_graph import attributes_of, graphs_of, named, names_taken

# Quantised operators that are another on real numbers, each of whose inputs has a scale and a zero point behind it.
QUANTISED = {
    "QLinearConv": ("Conv", 2), "QLinearMatMul": ("MatMul", 2), "QLinearAdd": ("Add", 2), "QLinearMul": ("Mul", 2),
    "QLinearSigmoid": ("Sigmoid", 1), "QLinearLeakyRelu": ("LeakyRelu", 1), "QLinearSoftmax": ("Softmax", 1),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1), "QLinearAveragePool": ("AveragePool", 1),
    "QGemm": ("Gemm", 2),
}  # fmt: skip
FLOAT, _INT32 = 1, 6  # ONNX's numbers of the types
# Operators on integers that are these on real numbers.
INTEGERS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
# ONNX's numbers of whole numbers that share a byte, which TVM has no constants of.
_IN_PARTS_OF_BYTES = (21, 22, 25, 26)
# Attributes of quantised operators that those on real numbers have not, with the only value that is known here.
_OWN = {"channels_last": 0, "opset": None}


def real(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Write a quantised operator as one on real numbers, or on the integers that they are multiples of."""
    kind, number = QUANTISED[node.op_type]
    facts = attributes_of(node)
    if any(value is not None and facts.get(name, value) != value for name, value in _OWN.items()):
        return None
    facts = {name: value for name, value in facts.items() if name not in _OWN}
    groups, rest = [inputs[3 * i : 3 * i + 3] for i in range(number)], inputs[3 * number :]
    if kind not in ("Conv", "MatMul", "Gemm"):
        reals = [graph.op("DequantizeLinear", *filter(None, group)) for group in groups]
        return [graph.op("QuantizeLinear", graph.op(kind, *reals, **facts), *filter(None, rest[:2]))]
    # A product of integers that is scaled afterwards, as in ONNX Runtime, is rounded as it is there.
    first, second, third = [*rest, "", "", ""][:3]
    bias, scale, zero = (first, second, third) if kind == "Gemm" else (third, first, second)
    weight = graph.dims(groups[1][0])
    if weight is None:
        return None
    alpha = graph.constant(np.float32(facts.pop("alpha", 1.0)))
    factor = graph.op("Mul", graph.op("Mul", groups[0][1], groups[1][1]), alpha)
    if scale:
        factor = graph.op("Div", factor, scale)
    in_rows = kind == "Conv" or (kind == "Gemm" and facts.get("transB", 0) == 1)  # the outputs of the weights
    integers = [_shifted(graph, x, zero_point, in_rows) for x, _, zero_point in groups]
    result = graph.op(kind, *integers, *([graph.op("Cast", bias, to=FLOAT)] if bias else []), **facts)
    if kind == "Conv":  # a factor for each channel
        factor = graph.reshaped(factor, [-1, *[1] * (len(weight) - 2)])
    result = graph.op("Mul", result, factor)
    return [
        graph.op("QuantizeLinear", result, graph.constant(np.float32(1)), *filter(None, [zero])) if scale else result
    ]


def dequantised(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Compute weights of less than 8 bits, or with a scale for each block; None for others."""
    facts, names = attributes_of(node), named(inputs, 3)
    size, codes = facts.get("block_size", 0), graph.weight(names[0])
    parts = [graph.weight(name) if name else np.zeros((), np.int8) for name in names[1:]]
    if not (size or graph.dtype(names[0]) in _IN_PARTS_OF_BYTES):
        return None
    if codes is None or any(part is None for part in parts):
        return None
    axis = facts.get("axis", 1) % codes.ndim
    blocks = -(-codes.shape[axis] // size) if size > 0 else 0  # a file may ask for any size
    if size and any(part.ndim and part.shape[axis : axis + 1] != (blocks,) for part in parts):
        return None

    def spread(part: np.ndarray) -> np.ndarray:
        """Return the scale or zero point of each weight, or of each slice along the axis."""
        part = part.astype(np.float32)
        if size and part.ndim:
            return part.take(np.arange(codes.shape[axis]) // size, axis)
        return (
            part.reshape([-1 if at == axis else 1 for at in range(codes.ndim)]) if part.size > 1 else part.reshape(())
        )

    def real_numbers() -> np.ndarray:
        scale, zero = map(spread, parts)
        return (codes.astype(np.float32) - zero) * scale

    return [graph.once((*names, size, axis), real_numbers)]


def of_parts(graph: Any, node: Any, inputs: list[str]) -> list[str]:
    """Join quantised tensors, or choose between two, of which each has a scale and a zero point, and quantise again."""
    joins = node.op_type == "QLinearConcat"
    first, rest = (inputs[:2], inputs[2:]) if joins else (inputs[-2:], inputs[1:-2])
    parts = [graph.op("DequantizeLinear", *filter(None, rest[at : at + 3])) for at in range(0, len(rest), 3)]
    given = [] if joins else inputs[:1]
    result = graph.op("Concat" if joins else "Where", *given, *parts, **(attributes_of(node) if joins else {}))
    return [graph.op("QuantizeLinear", result, *filter(None, first))]


def read_bytes(graph: Any, x: str, scale: str, zero: str) -> str | None:
    """Add the real numbers of 8 bits, whose columns may have a scale or a zero point each."""
    sizes, dims = [graph.dims(one) for one in (scale, *[zero] * bool(zero))], graph.dims(x)
    if dims is None or None in sizes:
        return None
    counts = {prod(one) for one in sizes}
    if counts == {1}:
        scale, zero = graph.reshaped(scale, []), zero and graph.reshaped(zero, [])  # as ONNX wants it
    elif len(counts) > 1 or graph.opset < 13:
        whole = graph.op("Cast", x, to=FLOAT)
        whole = graph.op("Sub", whole, graph.op("Cast", zero, to=FLOAT)) if zero else whole
        return str(graph.op("Mul", whole, scale))
    own = {} if counts == {1} else {"axis": len(dims) - 1}
    return str(graph.op("DequantizeLinear", x, scale, *[zero] * bool(zero), **own))


def product_of_integers(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Write a product of integers as one of the real numbers that they are."""
    zeros, kind = [*inputs[2:], "", ""][:2], INTEGERS[node.op_type]
    if kind == "MatMul":
        dims = graph.dims(zeros[0]) if zeros[0] else ()
        one = dims is not None and prod(dims) == 1  # and not one for each row
        if not one or str(node.output[0]) not in graph.read_as_floats:
            return None
    integers = [_shifted(graph, x, zero, kind == "Conv") for x, zero in zip(inputs[:2], zeros, strict=True)]
    floats = graph.op(kind, *integers, **attributes_of(node))
    result = graph.op("Cast", floats, to=_INT32)
    graph.floats[result] = floats
    return [result]


def _shifted(graph: Any, x: str, zero: str, in_rows: bool) -> str:
    """Return integers less their zero point as float32, which holds sums of them exactly up to 2**24."""
    value, dims = graph.op("Cast", x, to=FLOAT), graph.dims(zero) if zero else None
    if not zero or (zero in graph.values and not graph.values[zero].any()):
        return value
    shift = graph.op("Cast", zero, to=FLOAT)
    if in_rows and dims and prod(dims) > 1:  # one for each output
        shift = graph.reshaped(shift, [-1, *[1] * (len(graph.dims(x) or ()) - 1)])
    return graph.op("Sub", value, shift)


def read_as_floats(graph: Any) -> frozenset[str]:
    """Return the tensors that nothing but casts to float32 read: those lose what exceeds 2**24 anyway."""
    casts, others = list[Any](), list[Any]()
    for node in graph.node:
        as_float = node.op_type == "Cast" and attributes_of(node).get("to") == FLOAT
        (casts if as_float else others).append(node)
    return frozenset(names_taken(*casts) - names_taken(*others) - {output.name for output in graph.output})


def dequantise_layers(model: Any) -> bool:
    """Make LSTM layers of ONNX Runtime's dynamically quantised ones, in place; return whether there were any.

    Their weights keep the values that the numbers of 8 bits stand for. Inputs are quantised by the range of all their
    steps, and states stay float32: ONNX Runtime rounds these at each step, by a scale that depends on its number of
    threads. Inputs behind another such layer stay float32, too: its small differences would become some of 1/255.
    """
    from onnx import helper, numpy_helper

    changed = False
    for graph in graphs_of(model):
        tensors, stale = {tensor.name: tensor for tensor in getattr(graph, "initializer", ())}, set[str]()
        behind = set[str]()
        for node in list(graph.node):
            follows = not behind.isdisjoint(node.input)
            if follows or node.op_type == "DynamicQuantizeLSTM":
                behind.update(filter(None, node.output))
            if node.op_type != "DynamicQuantizeLSTM" or not {*node.input[1:3], *node.input[8:]} <= tensors.keys():
                continue
            shapes = [list(tensors[name].dims) for name in (*node.input[1:3], *node.input[8:])]
            if len(shapes) != 6 or not any(node.output) or any(len(shape) != 3 for shape in shapes[:2]):
                continue
            one, outputs = [shapes[0][0]], [shapes[0][0], shapes[0][2]]
            if any(shape not in (one, outputs) for shape in shapes[2:]):
                continue  # not as ONNX Runtime has it: it is refused by its name
            scales_and_zeros = node.input[8:10], node.input[10:12]
            for at, (scale, zero) in enumerate(scales_and_zeros, start=1):
                names = node.input[at], scale, zero
                weight, by, shift = (numpy_helper.to_array(tensors[name]).astype(np.float32) for name in names)
                by, shift = (x.reshape(len(weight), 1, -1) for x in (by, shift))  # of directions, or their outputs
                real = ((weight - shift) * by).transpose(0, 2, 1)
                stale.add(node.input[at])
                # A name for each layer: several may share what is quantised.
                node.input[at] = f"{next(filter(None, node.output))}_tchub_{at}"
                graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(real), node.input[at]))
            node.op_type, node.domain = "LSTM", ""
            stale.update(node.input[8:])
            del node.input[8:]
            if follows:
                continue
            own = f"{next(filter(None, node.output))}_tchub_0"
            quantised, at = [f"{own}_{part}" for part in ("codes", "scale", "zero")], list(graph.node).index(node)
            graph.node.insert(at, helper.make_node("DequantizeLinear", quantised, [own]))
            graph.node.insert(at, helper.make_node("DynamicQuantizeLinear", node.input[:1], quantised))
            node.input[0] = own
        for name in stale - names_taken(*graph.node):
            graph.initializer.remove(tensors[name])
        for at in reversed(range(len(graph.input) if stale else 0)):
            if graph.input[at].name in stale:  # as older files list their constants
                del graph.input[at]
        changed |= bool(stale)
    return changed
