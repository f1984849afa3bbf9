"""Attention of ONNX Runtime's own operators, written as operators of ONNX; see `onnx_runtime`."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from ..errors import NetworkImportError
from .onnx_graph import attributes_of, named
from .onnx_quantised import read_bytes

_INT64 = 7  # ONNX's number of the type
_MASKED = -10000.0  # added to the scores of what is masked, unless a node says otherwise
_LEAST = float(np.finfo(np.float32).min)


def _mask(graph: Any, mask: str, batch: int, terms: int, low: float) -> str | None:
    """Add what is added to scores `[batch, heads, rows, terms]`, given terms that count, or ends and beginnings."""
    dims = graph.dims(mask)
    if dims is None or len(dims) > 3 or (len(dims) == 1 and dims[0] not in (batch, 2 * batch)):
        return None
    if len(dims) == 1:
        ends, *begins = (
            graph.op("Cast", graph.reshaped(graph.sliced(mask, 0, at, at + batch), [batch, 1, 1, 1]), to=_INT64)
            for at in range(0, dims[0], batch)
        )
        numbers = graph.constant(np.arange(terms))
        keeps = graph.op("Less", numbers, ends)
        for one in begins:
            keeps = graph.op("And", keeps, graph.op("Not", graph.op("Less", numbers, one)))
    else:
        shape = [dims[0], 1, 1, dims[1]] if len(dims) == 2 else [dims[0], 1, *dims[1:]]
        keeps = graph.op("Greater", graph.reshaped(mask, shape), graph.constant(np.int32(0)))
    return str(graph.op("Where", keeps, graph.number(0), graph.number(low)))


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
    query = graph.op("Mul", query, graph.number(scale))
    scores = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    if mask:
        low = _mask(graph, mask, batch, terms, facts.get("mask_filter_value", _MASKED))
        if low is None:
            return None
        scores = graph.op("Add", scores, low)
    if facts.get("unidirectional"):
        past = terms - rows
        keeps = graph.once((rows, terms), lambda: np.tril(np.ones((rows, terms), bool), past))
        scores = graph.op("Where", keeps, scores, graph.number(_LEAST))
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
    x, weights, bias, *rest = named(inputs, 9)
    if node.op_type == "QAttention":
        scale, by, mask, zero, shift, past, added = *rest, ""
        x, weights = (read_bytes(graph, *one) or "" for one in ((x, scale, zero), (weights, by, shift)))
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
    parts = [_by_heads(graph, graph.sliced(product, 2, begin, end), heads) for begin, end in ends]
    terms = dims[1]
    sizes = graph.dims(past) if past else [0] * 5
    if sizes is None:
        return None
    if sizes[3]:  # [2, batch, heads, length, numbers]
        terms += sizes[3]
        for at in (1, 2):
            before = graph.reshaped(graph.sliced(past, 0, at - 1, at), sizes[1:])
            parts[at] = graph.op("Concat", before, parts[at], axis=2)
    result = _attended(graph, node, parts, (dims[0], dims[1], terms), mask, added)
    if result is None or not graph.reads(node.output[1:]):
        return None if result is None else [result]
    shape = [1, dims[0], heads, terms, -1]
    return [result, graph.op("Concat", *(graph.reshaped(part, shape) for part in parts[1:]), axis=0)]


def _attention_of_heads(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Attend with queries, keys and values that were computed before, behind those of earlier steps."""
    heads = attributes_of(node)["num_heads"]
    *parts, bias, mask, added, past_keys, past_values, share, cache = named(inputs, 10)
    shapes: list[Any] = [graph.dims(part) if part else None for part in parts]
    if any(shape is None or len(shape) == 5 for shape in shapes) or share or cache or len(shapes[0]) != 3:
        return None
    begin = 0
    for at, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
        if len(shape) == 4:  # keys and values may be by heads already
            continue
        own = graph.sliced(bias, 0, begin, begin + shape[2]) if bias else ""
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


# Attention of several heads to one of keys, with rotated positions


def _sizes(graph: Any, x: str) -> list[int]:
    """Return the sizes of a tensor.

    Raises:
        ValueError: they are not known.
    """
    dims = graph.dims(x)
    if dims is None:
        raise ValueError(f"at {x!r}, whose sizes are not known")
    return list(dims)


def _rotated(graph: Any, x: str, angles: Sequence[str], interleaved: bool) -> str:
    """Turn pairs of the first numbers of `[batch, heads, length, numbers]` by angles.

    Args:
        angles: their cosines and sines, `[batch or 1, 1, length, pairs]`.
        interleaved: neighbours are pairs, instead of numbers of two halves.
    """
    cosines, sines = angles
    dims = _sizes(graph, x)
    pairs, wide = _sizes(graph, cosines)[-1], dims[-1]
    turned, rest = (
        (x, "") if 2 * pairs == wide else (graph.sliced(x, 3, 0, 2 * pairs), graph.sliced(x, 3, 2 * pairs, wide))
    )
    if interleaved:
        apart = graph.reshaped(turned, [*dims[:3], pairs, 2])
        first, second = (graph.reshaped(graph.sliced(apart, 4, at, at + 1), [*dims[:3], pairs]) for at in (0, 1))
    else:
        first, second = (graph.sliced(turned, 3, at, at + pairs) for at in (0, pairs))
    left = graph.op("Sub", graph.op("Mul", first, cosines), graph.op("Mul", second, sines))
    right = graph.op("Add", graph.op("Mul", second, cosines), graph.op("Mul", first, sines))
    if interleaved:
        both = (graph.reshaped(part, [*dims[:3], pairs, 1]) for part in (left, right))
        turned = graph.reshaped(graph.op("Concat", *both, axis=4), [*dims[:3], 2 * pairs])
    else:
        turned = graph.op("Concat", left, right, axis=3)
    return str(graph.op("Concat", turned, rest, axis=3) if rest else turned)


def _angles(graph: Any, caches: Sequence[str], positions: str, batch: int, rows: int) -> list[str]:
    """Add the rows of tables of cosines and sines at positions `[batch or 1, length]`, for each head."""
    each = (graph.op("Gather", cache, positions) for cache in caches)
    return [graph.reshaped(one, [batch, 1, rows, -1]) for one in each]


def _rotary(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Turn queries or keys by their positions."""
    facts, (x, positions, *caches) = attributes_of(node), inputs
    if facts.get("is_packed_batching") or facts.get("scale", 1.0) != 1.0:
        return None
    dims, at = _sizes(graph, x), _sizes(graph, positions)
    by_heads = len(dims) == 4
    rows = dims[2 if by_heads else 1]
    if at == [1]:  # of the first row
        positions = graph.reshaped(graph.op("Add", positions, graph.constant(np.arange(rows))), [1, rows])
        at = [1, rows]
    wide = facts.get("rotary_embedding_dim", 0)
    heads = facts.get("num_heads", 0) if wide else dims[-1] // (2 * _sizes(graph, caches[0])[-1])
    if not by_heads:
        x = _by_heads(graph, x, heads)
    angles = _angles(graph, caches, positions, at[0], rows)
    result = _rotated(graph, x, angles, bool(facts.get("interleaved")))
    return [result if by_heads else graph.reshaped(graph.op("Transpose", result, perm=[0, 2, 1, 3]), dims)]


# Attributes of grouped attention that change what it computes in a way that is not known here, and their usual values.
_UNUSUAL = {
    "qk_output": 0,
    "smooth_softmax": 0,
    "k_quant_type": b"NONE",
    "v_quant_type": b"NONE",
    "kv_cache_bit_width": 0,
}


def _present(graph: Any, past: str, new: str, begin: str, end: str) -> str:
    """Put new keys or values behind those of earlier steps, which end elsewhere in each sequence; zeros follow.

    Args:
        begin, end: `[batch, 1, 1, 1]`, where the new ones begin and end.
    """
    dims, before = _sizes(graph, new), _sizes(graph, past)[2]
    rows = dims[2]
    numbers = graph.once(("rows", before + rows), lambda: np.arange(before + rows).reshape(1, 1, -1, 1))
    old = graph.op("Concat", past, graph.once(("zeros", *dims), lambda: np.zeros(dims, np.float32)), axis=2)
    if rows == 1:
        put = graph.op("Where", graph.op("Equal", numbers, begin), new, old)
    else:
        at = graph.op("Sub", numbers, begin)
        at = graph.op("Min", graph.op("Max", at, graph.constant(0)), graph.constant(rows - 1))
        at = graph.op("Expand", at, graph.constant(np.array([*dims[:2], before + rows, dims[3]])))
        put = graph.op("Where", graph.op("Less", numbers, begin), old, graph.op("GatherElements", new, at, axis=2))
    return str(graph.op("Where", graph.op("Less", numbers, end), put, graph.number(0)))


def _grouped(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Attend with several heads of queries to one of keys and values, which follow those of earlier steps."""
    facts, names = attributes_of(node), named(inputs, 12)
    query, key, value, past_keys, past_values, lengths, total, *caches, positions, added, sink = names
    heads, shared = facts["num_heads"], facts["kv_num_heads"]
    if any(facts.get(name, usual) != usual for name, usual in _UNUSUAL.items()) or sink or len(inputs) > 12:
        return None
    batch, rows, columns = _sizes(graph, query)
    before, terms = _sizes(graph, past_keys)[2] if past_keys else 0, graph.weight(total)
    if terms is None or int(terms.item()) != before + rows:
        given = "is an input" if terms is None else f"is {int(terms.item())}"
        raise NetworkImportError(
            f"the total length {given} of attention to {before} earlier keys and {rows} new ones, node "
            f"{node.name or node.output[0]!r}",
            remedy=f"give sizes by --shape so that it is {before + rows}, their sum"
            + (f", and the input, e.g. --shape {total}={before + rows}" if terms is None else ""),
            operator=node.op_type,
        )
    if (before and rows > 1 and batch > 1) or facts.get("local_window_size", -1) == 0:
        return None  # ONNX Runtime does not take the one, and nothing is attended to in the other
    if key:
        parts = [query, key, value]
    else:
        wide = columns // (heads + 2 * shared)
        ends = pairwise(np.cumsum([0, heads * wide, shared * wide, shared * wide]).tolist())
        parts = [graph.sliced(query, 2, *one) for one in ends]
        columns = heads * wide
    query, key, value = (_by_heads(graph, x, count) for x, count in zip(parts, (heads, shared, shared), strict=True))
    end = graph.op("Add", graph.reshaped(graph.op("Cast", lengths, to=_INT64), [batch, 1]), graph.constant(1))
    begin = graph.op("Sub", end, graph.constant(rows)) if before else graph.op("Sub", end, end)
    at = graph.op("Add", begin, graph.constant(np.arange(rows).reshape(1, rows)))
    if facts.get("do_rotary"):
        if positions and not before:  # ONNX Runtime counts from the first one, for all sequences
            first = graph.sliced(graph.reshaped(positions, [-1]), 0, 0, 1)
            positions = graph.op("Add", first, graph.constant(np.tile(np.arange(rows), (batch, 1))))
        angles = _angles(graph, caches, positions or at, batch, rows)
        query, key = (_rotated(graph, x, angles, bool(facts.get("rotary_interleaved"))) for x in (query, key))
    begin, end = (graph.reshaped(one, [batch, 1, 1, 1]) for one in (begin, end))
    if before:
        key, value = (_present(graph, *one, begin, end) for one in ((past_keys, key), (past_values, value)))
    terms = before + rows
    wide = columns // heads
    query = graph.op("Mul", query, graph.number(facts.get("scale", 0.0) or 1 / sqrt(wide)))
    query = graph.reshaped(query, [batch, shared, heads // shared * rows, wide])
    scores = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = graph.reshaped(scores, [batch, heads, rows, terms])
    if cap := facts.get("softcap", 0.0):
        scores = graph.op("Mul", graph.op("Tanh", graph.op("Div", scores, graph.number(cap))), graph.number(cap))
    scores = graph.op("Add", scores, added) if added else scores
    numbers, own = graph.constant(np.arange(terms)), graph.reshaped(at, [batch, 1, rows, 1])
    keeps = graph.op("Not", graph.op("Less", own, numbers))
    if (window := facts.get("local_window_size", -1)) > 0:
        nearest = graph.op("Sub", own, graph.constant(window))
        keeps = graph.op("And", keeps, graph.op("Less", nearest, numbers))
    scores = graph.op("Softmax", graph.op("Where", keeps, scores, graph.number(_LEAST)), axis=-1)
    scores = graph.reshaped(scores, [batch, shared, heads // shared * rows, terms])
    result = graph.reshaped(graph.op("MatMul", scores, value), [batch, heads, rows, wide])
    return [graph.reshaped(graph.op("Transpose", result, perm=[0, 2, 1, 3]), [batch, rows, columns]), key, value]


ATTENTIONS: dict[str, Callable[[Any, Any, list[str]], list[str] | None]] = {
    "Attention": _attention, "QAttention": _attention, "MultiHeadAttention": _attention_of_heads,
    "GroupQueryAttention": _grouped, "RotaryEmbedding": _rotary,
}  # fmt: skip
"""By the operator, see `onnx_runtime.OWN_RULES`."""
