"""ONNX Runtime's own operators, of the domain com.microsoft, written as operators of ONNX.

Files have them that ONNX Runtime or its tools optimised, or quantised by blocks. Each rule gives a node's outputs, or
None for a node that it does not know in this form.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import ceil, prod, sqrt
from typing import Any

import numpy as np

from .onnx_graph import DEFAULT, attributes_of, graphs_of, opset_of
from .onnx_operators import reduced
from .onnx_quantised import FLOAT

RUNTIME = "com.microsoft"
RUNTIME_REMEDY = (
    "take the file from before ONNX Runtime optimised it, or quantise it without this operator: "
    "quantize_dynamic(..., op_types_to_quantize=['MatMul'])"
)
_INT64 = 7  # ONNX's number of the type
_OF_NORMS = 17  # ONNX's opset that has layer norms
_MASKED = -10000.0  # added to the scores of what is masked, unless a node says otherwise
# Activations of fused nodes, with the names of their parameters in order.
_ACTIVATIONS = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": (),
}  # fmt: skip


def _number(graph: Any, value: float) -> str:
    return str(graph.constant(np.float32(value)))


def _named(inputs: Sequence[str], count: int) -> list[str]:
    """Return so many names of inputs, empty ones for those that are left out."""
    return [*inputs, *[""] * count][:count]


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
    root = graph.op("Sqrt", graph.op("Add", variance, _number(graph, epsilon)))
    x = graph.op("Mul", graph.op("Div", x, root), scale)
    return str(graph.op("Add", x, bias) if bias else x)


def is_own_norm(node: Any, opset: int) -> bool:
    """Return whether a node is a norm that ONNX does not have, or not yet, and ONNX Runtime writes as ONNX's."""
    kind = node.op_type
    return kind == "SimplifiedLayerNormalization" or (kind == "LayerNormalization" and opset < _OF_NORMS)


def _own_norms(model: Any) -> list[Any]:
    nodes, opset = [node for graph in graphs_of(model) for node in graph.node], opset_of(model)
    return [node for node in nodes if node.domain in DEFAULT and is_own_norm(node, opset)]


def has_own_norms(model: Any) -> bool:
    """Return whether a model has norms that `is_own_norm` describes."""
    return bool(_own_norms(model))


@contextmanager
def norms_apart(model: Any) -> Iterator[None]:
    """Give such norms ONNX Runtime's domain for a while, in which ONNX does not look for them."""
    norms, known = _own_norms(model), any(one.domain == RUNTIME for one in model.opset_import)
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
    x, scale, bias = _named(inputs, 3)
    axes, centred = range(facts.get("axis", -1) % len(dims), len(dims)), node.op_type == "LayerNormalization"
    return [_norm(graph, x, scale, bias, facts.get("epsilon", 1e-5), centred, axes)]


def _skip_norm(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Add a second input, and normalise the sum, which is the last output, too."""
    centred, facts = node.op_type == "SkipLayerNormalization", attributes_of(node)
    x, skip, scale, *rest = _named(inputs, 5)
    shift, bias = rest if centred else ("", rest[0])
    if graph.reads(node.output[1:3]):
        return None
    total = graph.op("Add", x, skip)
    total = graph.op("Add", total, bias) if bias else total
    return [_norm(graph, total, scale, shift, facts.get("epsilon", 1e-12), centred), "", "", total]


def _embedded(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Add up the embeddings of words, positions and segments, and normalise; the lengths are of a mask."""
    facts = attributes_of(node)
    ids, segments, table, positions, kinds, scale, shift, mask, order = _named(inputs, 9)
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


def _gelu(graph: Any, node: Any, inputs: list[str]) -> list[str]:
    """Add a bias, if there is one, and compute a GELU by the error function, tanh or a sigmoid."""
    x, bias = _named(inputs, 2)
    x = graph.op("Add", x, bias) if bias else x
    if node.op_type == "QuickGelu":
        alpha = _number(graph, attributes_of(node).get("alpha", 1.702))
        return [graph.op("Mul", x, graph.op("Sigmoid", graph.op("Mul", x, alpha)))]
    if node.op_type == "FastGelu":
        cube = graph.op("Mul", graph.op("Mul", graph.op("Mul", x, x), x), _number(graph, 0.044715))
        inner = graph.op("Tanh", graph.op("Mul", graph.op("Add", x, cube), _number(graph, sqrt(2 / np.pi))))
    else:
        inner = graph.op("Erf", graph.op("Mul", x, _number(graph, sqrt(0.5))))
    inner = graph.op("Add", inner, _number(graph, 1))
    return [graph.op("Mul", graph.op("Mul", x, _number(graph, 0.5)), inner)]


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
        return [graph.op("Min", graph.op("Max", x, _number(graph, values[0])), _number(graph, values[1]))]
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
    return [product if alpha == 1 else graph.op("Mul", product, _number(graph, alpha))]


def unpacked(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return the whole numbers of so many bits in the bytes of the last axis, the first in the lowest bits."""
    each = 8 // bits
    numbers = packed[..., None] >> (bits * np.arange(each, dtype=np.uint8)) & (2**bits - 1)
    return numbers.reshape(*packed.shape[:-1], -1)[..., :count]


def _block_product(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Multiply by weights of a few bits, of which each block of a column has a scale and a zero point."""
    facts, (x, packed, scale, zero, order, bias) = attributes_of(node), _named(inputs, 6)
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


def exact_products(model: Any) -> bool:
    """Make ONNX Runtime multiply by weights of a few bits in float32, in place; return whether it would not have.

    It may round what they are multiplied by to 8 bits, as a node's `accuracy_level` says.
    """
    nodes = [node for graph in graphs_of(model) for node in graph.node if node.op_type == "MatMulNBits"]
    rounded = [(node, one) for node in nodes for one in node.attribute if one.name == "accuracy_level" and one.i > 1]
    for node, attribute in rounded:
        node.attribute.remove(attribute)
    return bool(rounded)


def _dequantised(graph: Any, x: str, scale: str, zero: str) -> str | None:
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


def _product_of_bytes(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Multiply data and weights of 8 bits; data that are real are quantised before."""
    if node.op_type == "DynamicQuantizeMatMul":
        x, weights, by, shift, bias = _named(inputs, 5)
        codes, scale, zero = (graph.fresh() for _ in range(3))
        graph.node("DynamicQuantizeLinear", [x], [codes, scale, zero])
        data: str | None = graph.op("DequantizeLinear", codes, scale, zero)
    else:
        x, weights, scale, by, zero, shift, bias = _named(inputs, 7)
        data = _dequantised(graph, x, scale, zero)
    real = _dequantised(graph, weights, by, shift)
    if data is None or real is None:
        return None
    product = graph.op("MatMul", data, real)
    return [graph.op("Add", product, bias) if bias else product]


# Attention


def _mask(graph: Any, mask: str, batch: int, terms: int, low: float) -> str | None:
    """Add what is added to scores `[batch, heads, rows, terms]`, given terms that count, or ends and beginnings."""
    dims = graph.dims(mask)
    if dims is None or len(dims) > 3 or (len(dims) == 1 and dims[0] not in (batch, 2 * batch)):
        return None
    if len(dims) == 1:
        ends, *begins = (
            graph.op("Cast", graph.reshaped(_slice(graph, mask, 0, at, at + batch), [batch, 1, 1, 1]), to=_INT64)
            for at in range(0, dims[0], batch)
        )
        numbers = graph.constant(np.arange(terms))
        keeps = graph.op("Less", numbers, ends)
        for one in begins:
            keeps = graph.op("And", keeps, graph.op("Not", graph.op("Less", numbers, one)))
    else:
        shape = [dims[0], 1, 1, dims[1]] if len(dims) == 2 else [dims[0], 1, *dims[1:]]
        keeps = graph.op("Greater", graph.reshaped(mask, shape), graph.constant(np.int32(0)))
    return str(graph.op("Where", keeps, _number(graph, 0), _number(graph, low)))


def _attended(
    graph: Any, node: Any, parts: Sequence[str], sizes: tuple[int, int, int], mask: str, added: str
) -> str | None:
    """Add attention of queries, keys and values `[batch, heads, length, numbers]`; return `[batch, rows, columns]`.

    Args:
        sizes: of the batch, of queries, and of keys.
        mask: see `_mask`; added: a tensor that is added to the scores.
    """
    facts, (query, key, value), (batch, rows, terms) = attributes_of(node), parts, sizes
    dims = graph.dims(value)
    if dims is None or (query_dims := graph.dims(query)) is None:
        return None
    scale = facts.get("scale", 0.0) or 1 / sqrt(query_dims[-1])
    query = graph.op("Mul", query, _number(graph, scale))
    scores = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    if mask:
        low = _mask(graph, mask, batch, terms, facts.get("mask_filter_value", _MASKED))
        if low is None:
            return None
        scores = graph.op("Add", scores, low)
    if facts.get("unidirectional"):
        past = terms - rows
        keeps = graph.once((rows, terms), lambda: np.tril(np.ones((rows, terms), bool), past))
        scores = graph.op("Where", keeps, scores, _number(graph, float(np.finfo(np.float32).min)))
    scores = graph.op("Add", scores, added) if added else scores
    result = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), value)
    return str(graph.reshaped(graph.op("Transpose", result, perm=[0, 2, 1, 3]), [batch, rows, dims[1] * dims[3]]))


def _by_heads(graph: Any, x: str, heads: int) -> str:
    """Add `[batch, heads, length, numbers]` of `[batch, length, columns]`, or of one whose columns are by heads."""
    dims = graph.dims(x)
    return str(graph.op("Transpose", graph.reshaped(x, [*dims[:2], heads, -1]), perm=[0, 2, 1, 3]))


def _attention(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Multiply by the weights of queries, keys and values, and attend; both factors may have 8 bits."""
    facts = attributes_of(node)
    x, weights, bias, *rest = _named(inputs, 9)
    if node.op_type == "QAttention":
        scale, by, mask, zero, shift, past, added = *rest, ""
        x, weights = (_dequantised(graph, *one) or "" for one in ((x, scale, zero), (weights, by, shift)))
    else:
        mask, past, added = rest[:3]
    dims = graph.dims(x) if x and weights else None
    wide = graph.dims(weights) if dims is not None else None
    if dims is None or wide is None or facts.get("do_rotary") or facts.get("past_present_share_buffer"):
        return None
    heads = facts["num_heads"]
    product = graph.op("MatMul", x, weights)
    product = graph.op("Add", product, bias) if bias else product
    columns = facts.get("qkv_hidden_sizes", [wide[1] // 3] * 3)
    ends = pairwise(np.cumsum([0, *columns]))
    parts = [_by_heads(graph, _slice(graph, product, 2, begin, end), heads) for begin, end in ends]
    terms = dims[1]
    sizes = graph.dims(past) if past else [0] * 5
    if sizes is None:
        return None
    if sizes[3]:  # [2, batch, heads, length, numbers]
        terms += sizes[3]
        for at in (1, 2):
            before = graph.reshaped(_slice(graph, past, 0, at - 1, at), sizes[1:])
            parts[at] = graph.op("Concat", before, parts[at], axis=2)
    result = _attended(graph, node, parts, (dims[0], dims[1], terms), mask, added)
    if result is None or not graph.reads(node.output[1:]):
        return None if result is None else [result]
    shape = [1, dims[0], heads, terms, -1]
    return [result, graph.op("Concat", *(graph.reshaped(part, shape) for part in parts[1:]), axis=0)]


def _slice(graph: Any, x: str, axis: int, begin: int, end: int) -> str:
    return str(graph.op("Slice", x, *(graph.constant(np.array([one])) for one in (begin, end, axis))))


def _attention_of_heads(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Attend with queries, keys and values that were computed before, behind those of earlier steps."""
    heads = attributes_of(node)["num_heads"]
    *parts, bias, mask, added, past_keys, past_values, share, cache = _named(inputs, 10)
    shapes: list[Any] = [graph.dims(part) if part else None for part in parts]
    if any(shape is None or len(shape) == 5 for shape in shapes) or share or cache or len(shapes[0]) != 3:
        return None
    begin = 0
    for at, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
        if len(shape) == 4:  # keys and values may be by heads already
            continue
        own = _slice(graph, bias, 0, begin, begin + shape[2]) if bias else ""
        begin += shape[2]
        parts[at] = _by_heads(graph, graph.op("Add", part, own) if own else part, heads)
    terms = shapes[1][-2]
    if attributes_of(node).get("unidirectional") and terms != shapes[0][1]:
        return None
    for at, past in ((1, past_keys), (2, past_values)):
        sizes = graph.dims(past) if past else [0] * 4
        if sizes is None:
            return None
        if sizes[2]:
            terms += sizes[2] if at == 1 else 0
            parts[at] = graph.op("Concat", past, parts[at], axis=2)
    result = _attended(graph, node, parts, (shapes[0][0], shapes[0][1], terms), mask, added)
    return None if result is None else [result, parts[1], parts[2]]


OWN_RULES: dict[str, Callable[[Any, Any, list[str]], list[str] | None]] = {
    "SkipLayerNormalization": _skip_norm, "SkipSimplifiedLayerNormalization": _skip_norm,
    "SimplifiedLayerNormalization": _alone, "LayerNormalization": _alone, "EmbedLayerNormalization": _embedded,
    "Gelu": _gelu, "BiasGelu": _gelu, "FastGelu": _gelu, "QuickGelu": _gelu,
    "FusedConv": _activated, "FusedGemm": _activated, "FusedMatMul": _turned_product,
    "TransposeMatMul": _turned_product, "MatMulNBits": _block_product,
    "DynamicQuantizeMatMul": _product_of_bytes, "MatMulIntegerToFloat": _product_of_bytes,
    "Attention": _attention, "QAttention": _attention, "MultiHeadAttention": _attention_of_heads,
}  # fmt: skip
"""By the operator, what writes a node to a `_Fold`; None or an error refuses it."""
