"""Complex numbers as pairs of real tensors, which is all that TVM has: rotary positions, Fourier transforms.

A graph is rewritten from its first node to its last: each node that is complex becomes two, and operators that lead
back to real tensors take the pair. A transform is a product with the matrix of its cosines and that of its sines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

Pair = tuple[Any, Any]


def pair_complex(exported: Any) -> None:
    """Rewrite the complex operators of a decomposed program, in place; its complex constants become real ones.

    Args:
        exported: a decomposed `torch.export.ExportedProgram` whose dictionaries of tensors may be shared.

    Raises:
        ValueError: an operator of complex numbers has no rule, or takes a complex input of the network; the
            message is that of TVM's importer for operators that it lacks.
    """
    graph = exported.graph_module.graph
    if not any(_is_complex(node) for node in graph.nodes):
        return
    exported._state_dict, exported._constants = dict(exported.state_dict), dict(exported.constants)
    pairs: dict[Any, Pair] = {}
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in list(graph.nodes):
        if node.op == "placeholder" and _is_complex(node) and _make_real(exported, node):
            build = _Builder(graph, first, pairs)
            pairs[node] = _parts(build, node)
        elif node.op == "call_function" and (_is_complex(node) or any(n in pairs for n in node.all_input_nodes)):
            rule = _rules().get(node.target)
            if rule is None or any(_is_complex(n) and n not in pairs for n in node.all_input_nodes):
                raise ValueError(f"Unsupported function types ['{node.target.__name__}']")
            result = rule(_Builder(graph, node, pairs), *node.args, **node.kwargs)
            if isinstance(result, tuple):
                pairs[node] = result
            else:
                node.replace_all_uses_with(result)


def _is_complex(node: Any) -> bool:
    import torch

    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _make_real(exported: Any, node: Any) -> bool:
    """Give a weight, buffer or constant a last dimension of real and imaginary part; False for an input."""
    import torch

    signature = exported.graph_signature
    for names in (
        signature.inputs_to_parameters,
        signature.inputs_to_buffers,
        signature.inputs_to_lifted_tensor_constants,
    ):
        name = names.get(node.name)
        for tensors in (exported.state_dict, exported.constants):
            if name in tensors:
                real = torch.view_as_real(tensors[name].detach().resolve_conj()).contiguous()
                tensors[name] = torch.nn.Parameter(real) if names is signature.inputs_to_parameters else real
                node.meta["val"] = torch.view_as_real(node.meta["val"])
                return True
    return False


class _Builder:
    """Puts operators before a node, with what they give as `meta["val"]`."""

    def __init__(self, graph: Any, before: Any, pairs: dict[Any, Pair]) -> None:
        self.graph, self.before, self.pairs = graph, before, pairs

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.fx.node import map_arg

        packet, overload = name.split(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(op, args, kwargs)
        mode = next(n.meta["val"].fake_mode for n in self.graph.nodes if hasattr(n.meta.get("val"), "fake_mode"))
        with mode:
            node.meta["val"] = op(*map_arg(args, lambda n: n.meta["val"]), **kwargs)
        return node

    def pair(self, x: Any) -> Pair:
        """Parts of an operand; a number or a real tensor has no imaginary part: None."""
        return self.pairs.get(x, (x, None)) if not isinstance(x, complex) else (x.real, x.imag)

    def product(self, x: Any, y: Any, op: str = "mul.Tensor") -> Any:
        """Product of two real operands, or None where one of them is none."""
        if x is None or y is None:
            return None
        return self(op, x, y) if hasattr(x, "meta") else self(op, y, x)

    def sum(self, x: Any, y: Any, op: str = "add.Tensor") -> Any:
        """Sum or difference, where none is zero."""
        if y is None:
            return x
        if x is None:
            return y if op == "add.Tensor" else self("neg.default", y)
        return self(op, x, y) if hasattr(x, "meta") else self("add.Tensor", self("neg.default", y), x)


Rule = Callable[..., Any]


@cache
def _rules() -> dict[Any, Rule]:
    """Rules by operator: a pair for a complex result, a node for a real one."""
    import torch

    aten = torch.ops.aten
    rules: dict[Any, Rule] = {
        aten.view_as_complex.default: _parts,
        aten.view_as_real.default: _joined,
        aten.complex.default: lambda b, real, imaginary: (real, imaginary),
        aten.polar.default: lambda b, r, a: (
            b("mul.Tensor", r, b("cos.default", a)), b("mul.Tensor", r, b("sin.default", a))
        ),
        aten._to_copy.default: _copy,
        aten.mul.Tensor: _product,
        aten.mm.default: lambda b, x, y: _product(b, x, y, "mm.default"),
        aten.bmm.default: lambda b, x, y: _product(b, x, y, "bmm.default"),
        aten.add.Tensor: lambda b, x, y: _sum(b, x, y, "add.Tensor"),
        aten.sub.Tensor: lambda b, x, y: _sum(b, x, y, "sub.Tensor"),
        aten._conj.default: _conjugate,
        aten._conj_physical.default: _conjugate,
        aten.abs.default: lambda b, x: b("sqrt.default", b.sum(*(b("mul.Tensor", part, part) for part in b.pair(x)))),
        aten.cat.default: lambda b, xs, dim=0: tuple(
            b("cat.default", [b.pair(x)[part] for x in xs], dim) for part in (0, 1)
        ),
        aten.div.Tensor: _quotient,
        aten.full.default: _full,
        aten.copy.default: lambda b, x, y: tuple(
            b("expand.default", part, list(x.meta["val"].shape)) for part in b.pair(y)
        ),
        aten.slice_scatter.default: lambda b, x, y, *args: tuple(
            b("slice_scatter.default", *parts, *args) for parts in zip(b.pair(x), b.pair(y), strict=True)
        ),
        aten._fft_c2c.default: _transform,
        aten._fft_r2c.default: _real_transform,
        aten._fft_c2r.default: _back_to_real,
    }  # fmt: skip
    for name in (
        "view.default", "_unsafe_view.default", "permute.default", "unsqueeze.default", "expand.default",
        "slice.Tensor", "select.int", "squeeze.dims", "clone.default", "neg.default", "alias.default",
        "index_select.default", "flip.default", "constant_pad_nd.default", "sum.dim_IntList", "mean.dim",
    ):  # fmt: skip
        packet, overload = name.split(".")
        rules[getattr(getattr(aten, packet), overload)] = _for_each(name)
    return rules


def _parts(b: _Builder, x: Any) -> Pair:
    """The two slices of a real tensor's last dimension."""
    last = x.meta["val"].dim() - 1
    return b("select.int", x, last, 0), b("select.int", x, last, 1)


def _joined(b: _Builder, x: Any) -> Any:
    rank = b.pair(x)[0].meta["val"].dim()
    return b("cat.default", [b("unsqueeze.default", part, rank) for part in b.pair(x)], rank)


def _for_each(name: str) -> Rule:
    return lambda b, x, *args, **kwargs: tuple(b(name, part, *args, **kwargs) for part in b.pair(x))


def _copy(b: _Builder, x: Any, **kwargs: Any) -> Any:
    """A real tensor becomes complex, or another kind of complex."""
    import torch

    dtype = {torch.complex128: torch.float64}.get(kwargs["dtype"], torch.float32)
    if not kwargs["dtype"].is_complex:
        return b("_to_copy.default", b.pair(x)[0], **kwargs)
    real, imaginary = b.pair(x)
    real = b("_to_copy.default", real, dtype=dtype)
    imaginary = b("mul.Tensor", real, 0.0) if imaginary is None else b("_to_copy.default", imaginary, dtype=dtype)
    return real, imaginary


def _full(b: _Builder, size: Sequence[int], value: complex, **kwargs: Any) -> Pair:
    import torch

    dtype = torch.float64 if kwargs.get("dtype") == torch.complex128 else torch.float32
    value = complex(value)
    return b("full.default", size, value.real, dtype=dtype), b("full.default", size, value.imag, dtype=dtype)


def _conjugate(b: _Builder, x: Any) -> Pair:
    real, imaginary = b.pair(x)
    return real, b("neg.default", imaginary)


def _product(b: _Builder, x: Any, y: Any, op: str = "mul.Tensor") -> Pair:
    (a, c), (d, e) = b.pair(x), b.pair(y)
    real = b.sum(b.product(a, d, op), b.product(c, e, op), "sub.Tensor")
    return real, b.sum(b.product(a, e, op), b.product(c, d, op))


def _quotient(b: _Builder, x: Any, y: Any) -> Pair:
    real, imaginary = b.pair(y)
    if imaginary is None:
        return b("div.Tensor", b.pair(x)[0], real), b("div.Tensor", b.pair(x)[1], real)
    square = b.sum(b.product(real, real), b.product(imaginary, imaginary))
    b.pairs[y] = (b("div.Tensor", real, square), b("neg.default", b("div.Tensor", imaginary, square)))
    inverted = _product(b, x, y)
    b.pairs[y] = (real, imaginary)
    return inverted


def _sum(b: _Builder, x: Any, y: Any, op: str) -> Pair:
    (a, c), (d, e) = b.pair(x), b.pair(y)
    return b.sum(a, d, op), b.sum(c, e, op)


# Fourier transforms


def _waves(b: _Builder, size: int, rows: int) -> Pair:
    """Cosines and sines of every frequency, rows times size; angles are exact, as multiples of a turn's part."""
    import torch

    frequency = b("unsqueeze.default", b("arange.default", rows), 1)
    turns = b("remainder.Scalar", b("mul.Tensor", frequency, b("arange.default", size)), size)
    angle = b("mul.Tensor", b("_to_copy.default", turns, dtype=torch.float32), 2 * math.pi / size)
    return b("cos.default", angle), b("sin.default", angle)


def _along(b: _Builder, x: Any, dim: int, matrix: Any) -> Any:
    """Product of a tensor with a matrix (old size times new size) along a dimension."""
    import torch

    rank = x.meta["val"].dim()
    order = [i for i in range(rank) if i != dim % rank] + [dim % rank]
    moved = b("permute.default", x, order)
    shape = list(moved.meta["val"].shape)
    rows = b("clone.default", moved, memory_format=torch.contiguous_format)
    flat = b("mm.default", b("view.default", rows, [-1, shape[-1]]), matrix)
    back = b("view.default", flat, [*shape[:-1], matrix.meta["val"].shape[1]])
    return b("permute.default", back, [order.index(i) for i in range(rank)])


def _scaled(b: _Builder, parts: Sequence[Any], size: int, normalization: int) -> Pair:
    """Divide by the root of the size (1), by the size (2), or not at all (0)."""
    factor = {0: 1.0, 1: 1 / math.sqrt(size), 2: 1 / size}[normalization]
    real, imaginary = (part if factor == 1 else b("mul.Tensor", part, factor) for part in parts)
    return real, imaginary


def _transform(b: _Builder, x: Any, dim: Sequence[int], normalization: int, forward: bool) -> Pair:
    real, imaginary = b.pair(x)
    total = 1
    for d in dim:
        size = real.meta["val"].shape[d]
        total *= size
        cos, sin = _waves(b, size, size)
        if not forward:
            sin = b("neg.default", sin)
        mixed = b("add.Tensor", _along(b, real, d, cos), _along(b, imaginary, d, sin))
        imaginary = b("sub.Tensor", _along(b, imaginary, d, cos), _along(b, real, d, sin))
        real = mixed
    return _scaled(b, (real, imaginary), total, normalization)


def _real_transform(b: _Builder, x: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Pair:
    *others, last = dim
    size = x.meta["val"].shape[last]
    cos, sin = _waves(b, size, size // 2 + 1 if onesided else size)
    cos, sin = (b("permute.default", wave, [1, 0]) for wave in (cos, sin))
    parts = _scaled(b, (_along(b, x, last, cos), _along(b, b("neg.default", x), last, sin)), size, normalization)
    return _continued(b, parts, others, normalization, True)


def _back_to_real(b: _Builder, x: Any, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    """Transform half a spectrum: each frequency but the first, and the last of an even size, stands for two."""
    *others, last = dim
    real, imaginary = _continued(b, b.pair(x), others, normalization, False)
    rows = real.meta["val"].shape[last]
    places = b("arange.default", rows)
    edge = b("eq.Scalar", b("remainder.Scalar", b("mul.Tensor", places, 2), last_dim_size), 0)
    weights = b("unsqueeze.default", b("where.self", edge, b("full.default", [], 1.0), b("full.default", [], 2.0)), 1)
    cos, sin = (b("mul.Tensor", wave, weights) for wave in _waves(b, last_dim_size, rows))
    halves = b("sub.Tensor", _along(b, real, last, cos), _along(b, imaginary, last, sin))
    return _scaled(b, (halves, halves), last_dim_size, normalization)[0]


def _continued(b: _Builder, parts: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Pair:
    """The transform of the remaining dimensions."""
    if not dim:
        return parts
    key = object()
    b.pairs[key] = parts
    return _transform(b, key, dim, normalization, forward)
