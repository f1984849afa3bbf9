"""ONNX Runtime's own operators, of the domain com.microsoft, written as operators of ONNX.

Files have them that ONNX Runtime or its tools optimised, or quantised by blocks. Each rule gives a node's outputs, or
None for a node that it does not know in this form.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, sqrt
from typing import Any

import numpy as np

from .onnx_attention import ATTENTIONS
from .onnx_graph import DEFAULT, attributes_of, graphs_of, named, opset_of
from .onnx_operators import reduced
from .onnx_quantised import of_parts, read_bytes

RUNTIME = "com.microsoft"
RUNTIME_REMEDY = (
    "take the file from before ONNX Runtime optimised it, or quantise it without this operator: "
    "quantize_dynamic(..., op_types_to_quantize=['MatMul'])"
)
_OF_NORMS = 17  # ONNX's opset that has layer norms
# Activations of fused nodes, with the names of their parameters in order.
_ACTIVATIONS = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": (),
}  # fmt: skip
# The numbers that four bits stand for: floats of four bits, and those that halve a normal distribution into sixteen.
_POSITIVE = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4])
_NORMAL = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_FOUR_BITS = [np.array(numbers, np.float32) for numbers in ([*_POSITIVE, *-_POSITIVE], _NORMAL)]


# Norms and activations


def _norm(
    graph: Any, x: str, scale: str, bias: str, epsilon: float, centred: bool = True, axes: Sequence[int] = (-1,)
) -> str:
    """Add a norm over the last axis, or the last axes."""
    if centred and graph.opset >= _OF_NORMS:
        return str(graph.op("LayerNormalization", x, scale, *[bias] * bool(bias), axis=axes[0], epsilon=epsilon))
    if centred:
        x = graph.op("Sub", x, reduced(graph, "ReduceMean", x, [*axes]))
    variance = reduced(graph, "ReduceMean", graph.op("Mul", x, x), [*axes])
    root = graph.op("Sqrt", graph.op("Add", variance, graph.number(epsilon)))
    x = graph.op("Mul", graph.op("Div", x, root), scale)
    return str(graph.op("Add", x, bias) if bias else x)


def is_own_norm(node: Any, opset: int) -> bool:
    """Return whether a node is a norm that ONNX does not have, or not yet, and ONNX Runtime writes as ONNX's."""
    kind = node.op_type
    return kind == "SimplifiedLayerNormalization" or (kind == "LayerNormalization" and opset < _OF_NORMS)


def own_norms(model: Any) -> list[Any]:
    """Return the norms of a model that `is_own_norm` describes."""
    nodes, opset = [node for graph in graphs_of(model) for node in graph.node], opset_of(model)
    return [node for node in nodes if node.domain in DEFAULT and is_own_norm(node, opset)]


@contextmanager
def norms_apart(model: Any) -> Iterator[None]:
    """Give such norms ONNX Runtime's domain for a while, in which ONNX does not look for them."""
    norms, known = own_norms(model), any(one.domain == RUNTIME for one in model.opset_import)
    for node in norms:
        node.domain = RUNTIME
    if norms and not known:
        model.opset_import.add(domain=RUNTIME, version=1)
    try:
        yield
    finally:
        for node in norms:
            node.domain = ""
        if norms and not known:
            del model.opset_import[-1]


def _alone(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Normalise over the last axes, with a mean or without."""
    facts, dims = attributes_of(node), graph.dims(inputs[0])
    if dims is None or graph.reads(node.output[1:]):
        return None
    x, scale, bias = named(inputs, 3)
    axes, centred = range(facts.get("axis", -1) % len(dims), len(dims)), node.op_type == "LayerNormalization"
    return [_norm(graph, x, scale, bias, facts.get("epsilon", 1e-5), centred, axes)]


def _skip_norm(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Add a second input, and normalise the sum, which is the last output, too."""
    centred, facts = node.op_type == "SkipLayerNormalization", attributes_of(node)
    x, skip, scale, *rest = named(inputs, 5)
    shift, bias = rest if centred else ("", rest[0])
    if graph.reads(node.output[1:3]):
        return None
    total = graph.op("Add", x, skip)
    total = graph.op("Add", total, bias) if bias else total
    return [_norm(graph, total, scale, shift, facts.get("epsilon", 1e-12), centred), "", "", total]


def _embedded(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Add up the embeddings of words, positions and segments, and normalise; the lengths are of a mask."""
    facts = attributes_of(node)
    ids, segments, table, positions, kinds, scale, shift, mask, order = named(inputs, 9)
    dims = graph.dims(ids)
    if dims is None:
        return None
    total = graph.op("Gather", table, ids)
    total = graph.op("Add", total, graph.op("Gather", positions, order or graph.constant(np.arange(dims[1]))))
    if segments:
        total = graph.op("Add", total, graph.op("Gather", kinds, segments))
    lengths = graph.constant(np.zeros(dims[0], np.int32))
    if mask:
        lengths = graph.reshaped(reduced(graph, "ReduceSum", mask, [1]), [dims[0]])
    return [_norm(graph, total, scale, shift, facts.get("epsilon", 1e-12)), lengths, total]


def _embedded_bytes(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Add the sum of embeddings and its norm, all of whose weights have 8 bits."""
    ids, segments, *tables, mask = inputs[:8]
    scales, zeros = inputs[8:13], inputs[13:18]
    parts = zip(tables, scales, zeros, strict=True)
    real = [graph.op("DequantizeLinear", *one) if one[0] else "" for one in parts]
    return _embedded(graph, node, [ids, segments, *real, mask])


def _gelu(graph: Any, node: Any, inputs: list[str]) -> list[str]:
    """Add a bias, if there is one, and compute a GELU by the error function, tanh or a sigmoid."""
    x, bias = named(inputs, 2)
    x = graph.op("Add", x, bias) if bias else x
    if node.op_type == "QuickGelu":
        alpha = graph.number(attributes_of(node).get("alpha", 1.702))
        return [graph.op("Mul", x, graph.op("Sigmoid", graph.op("Mul", x, alpha)))]
    if node.op_type == "FastGelu":
        cube = graph.op("Mul", graph.op("Mul", graph.op("Mul", x, x), x), graph.number(0.044715))
        inner = graph.op("Tanh", graph.op("Mul", graph.op("Add", x, cube), graph.number(sqrt(2 / np.pi))))
    else:
        inner = graph.op("Erf", graph.op("Mul", x, graph.number(sqrt(0.5))))
    inner = graph.op("Add", inner, graph.number(1))
    return [graph.op("Mul", graph.op("Mul", x, graph.number(0.5)), inner)]


def _activated(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Write a convolution or product that adds a tensor and has an activation behind it."""
    facts, kind = attributes_of(node), node.op_type.removeprefix("Fused")
    activation = facts.pop("activation", b"").decode()
    listed = facts.pop("activation_params", [])
    single = [facts.pop(f"activation_{name}", None) for name in ("alpha", "beta", "gamma")]
    values = [*listed, *(value for value in single if value is not None)]
    if activation and activation not in _ACTIVATIONS:
        return None
    added = inputs[3] if kind == "Conv" and len(inputs) > 3 else ""
    x = graph.op(kind, *(inputs[:3] if inputs[2:3] != [""] else inputs[:2]), **facts)
    x = graph.op("Add", x, added) if added else x
    if activation == "Clip":
        return [graph.op("Min", graph.op("Max", x, graph.number(values[0])), graph.number(values[1]))]
    named = dict(zip(_ACTIVATIONS.get(activation, ()), values, strict=False))
    return [graph.op(activation, x, **named) if activation else x]


# Products


def _turned_product(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Multiply matrices of which either may be transposed."""
    facts, factors = attributes_of(node), []
    if facts.get("transBatchA") or facts.get("transBatchB"):
        return None
    for name, turned in zip(inputs, ("transA", "transB"), strict=True):
        dims = graph.dims(name)
        if facts.get(turned) and dims is None:
            return None
        if facts.get(turned) and len(dims) > 1:
            factors.append(graph.op("Transpose", name, perm=[*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]))
        else:
            factors.append(name)
    product = graph.op("MatMul", *factors)
    alpha = facts.get("alpha", 1.0)
    return [product if alpha == 1 else graph.op("Mul", product, graph.number(alpha))]


def unpacked(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return the whole numbers of so many bits in the bytes of the last axis, the first in the lowest bits."""
    each = 8 // bits
    numbers = packed[..., None] >> (bits * np.arange(each, dtype=np.uint8)) & (2**bits - 1)
    return numbers.reshape(*packed.shape[:-1], -1)[..., :count]


def _block_product(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Multiply by weights of a few bits, of which each block of a column has a scale and a zero point."""
    facts, (x, packed, scale, zero, order, bias) = attributes_of(node), named(inputs, 6)
    names = packed, scale, *[zero] * bool(zero)
    arrays = [graph.weight(name) for name in names]
    bits, size, terms, columns = facts.get("bits", 4), facts["block_size"], facts["K"], facts["N"]
    blocks = ceil(terms / size)
    if order or bits not in (2, 4, 8) or any(array is None for array in arrays):
        return None

    def weights() -> np.ndarray:
        whole = unpacked(arrays[0].reshape(columns, blocks, -1), bits, size).astype(np.float32)
        scales, zeros = arrays[1].astype(np.float32).reshape(columns, blocks), np.float32(1 << (bits - 1))
        if zero and arrays[2].dtype == np.uint8:
            zeros = unpacked(arrays[2].reshape(columns, -1), bits, blocks).astype(np.float32)[..., None]
        elif zero:
            zeros = arrays[2].astype(np.float32).reshape(columns, blocks, 1)
        return np.ascontiguousarray(((whole - zeros) * scales[..., None]).reshape(columns, -1)[:, :terms].T)

    product = graph.op("MatMul", x, graph.once((*names, bits, size, terms, columns), weights))
    return [graph.op("Add", product, bias) if bias else product]


def _product_of_four_bits(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Multiply by weights that are one of sixteen numbers, times the largest of their block (bitsandbytes)."""
    facts, (x, packed, largest) = attributes_of(node), inputs
    codes, scales = graph.weight(packed), graph.weight(largest)
    size, terms, columns = facts["block_size"], facts["K"], facts["N"]
    if codes is None or scales is None or facts.get("transB", 1) != 1 or facts["quant_type"] not in (0, 1):
        return None

    def weights() -> np.ndarray:
        whole = np.stack([codes.ravel() >> 4, codes.ravel() & 15], axis=1).ravel()[: terms * columns]
        blocks = np.repeat(scales.ravel().astype(np.float32), min(size, terms * columns))[: terms * columns]
        return np.ascontiguousarray((_FOUR_BITS[facts["quant_type"]][whole] * blocks).reshape(columns, terms).T)

    return [graph.op("MatMul", x, graph.once((packed, largest, size, terms, columns), weights))]


def _rows_of_blocks(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Choose rows of a table of a few bits, of which each block of a row has a scale and a zero point."""
    facts, (packed, rows, scale, zero) = attributes_of(node), named(inputs, 4)
    names = packed, scale, *[zero] * bool(zero)
    arrays = [graph.weight(name) for name in names]
    if any(array is None for array in arrays):
        return None
    kind, last = str(arrays[0].dtype), arrays[0].ndim - 1
    bits, size, axis = facts.get("bits", 4), facts.get("block_size", 128), facts.get("quantize_axis", 1)
    if facts.get("gather_axis", 0) not in (0, -last - 1) or axis not in (-1, last) or bits not in (2, 4, 8):
        return None
    if kind not in ("uint8", "int4", "uint4"):
        return None

    def table() -> np.ndarray:
        middle = np.float32(1 << (bits - 1)) if kind == "uint8" else np.float32(0)

        def real(array: np.ndarray, count: int) -> np.ndarray:
            return (unpacked(array, bits, count) if kind == "uint8" else array).astype(np.float32)

        count = arrays[0].shape[-1] * (8 // bits if kind == "uint8" else 1)
        scales = arrays[1].astype(np.float32)
        zeros = real(arrays[2], scales.shape[-1]) if zero else middle
        scales, zeros = (
            np.repeat(one, min(size, count), -1)[..., :count] if one.ndim else one for one in (scales, zeros)
        )
        return (real(arrays[0], count) - zeros) * scales

    return [graph.op("Gather", graph.once((*names, bits, size), table), rows, axis=0)]


def exact_products(model: Any) -> bool:
    """Make ONNX Runtime multiply by weights of a few bits in float32, in place; return whether it would not have.

    It may round what they are multiplied by to 8 bits, as a node's `accuracy_level` says.
    """
    nodes = [node for graph in graphs_of(model) for node in graph.node if node.op_type == "MatMulNBits"]
    rounded = [(node, one) for node in nodes for one in node.attribute if one.name == "accuracy_level" and one.i > 1]
    for node, attribute in rounded:
        node.attribute.remove(attribute)
    return bool(rounded)


def _product_of_bytes(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Multiply data and weights of 8 bits; data that are real are quantised before."""
    if node.op_type == "DynamicQuantizeMatMul":
        x, weights, by, shift, bias = named(inputs, 5)
        codes, scale, zero = (graph.fresh() for _ in range(3))
        graph.node("DynamicQuantizeLinear", [x], [codes, scale, zero])
        data: str | None = graph.op("DequantizeLinear", codes, scale, zero)
    else:
        x, weights, scale, by, zero, shift, bias = named(inputs, 7)
        data = read_bytes(graph, x, scale, zero)
    real = read_bytes(graph, weights, by, shift)
    if data is None or real is None:
        return None
    product = graph.op("MatMul", data, real)
    return [graph.op("Add", product, bias) if bias else product]


OWN_RULES: dict[str, Callable[[Any, Any, list[str]], list[str] | None]] = {
    "SkipLayerNormalization": _skip_norm, "SkipSimplifiedLayerNormalization": _skip_norm,
    "SimplifiedLayerNormalization": _alone, "LayerNormalization": _alone, "EmbedLayerNormalization": _embedded,
    "QEmbedLayerNormalization": _embedded_bytes, "QLinearConcat": of_parts, "QLinearWhere": of_parts,
    "Gelu": _gelu, "BiasGelu": _gelu, "FastGelu": _gelu, "QuickGelu": _gelu,
    "FusedConv": _activated, "FusedGemm": _activated, "FusedMatMul": _turned_product,
    "TransposeMatMul": _turned_product, "MatMulNBits": _block_product, "MatMulBnb4": _product_of_four_bits,
    "GatherBlockQuantized": _rows_of_blocks,
    "DynamicQuantizeMatMul": _product_of_bytes, "MatMulIntegerToFloat": _product_of_bytes,
    **ATTENTIONS,
}  # fmt: skip
"""By the operator, what writes a node to a `_Fold`; None or an error refuses it."""
