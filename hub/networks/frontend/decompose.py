"""PyTorch's side of the import: an exported program in operators that TVM translates, and translates rightly.

PyTorch's own decompositions come first. What follows here is for operators that TVM lacks, or computes otherwise than
PyTorch does: mixed data types, advanced indices with gaps, a maximum with its place (TVM sorts for it), attention. Of a
number and NaN, TVM's maximum and minimum are the second operand: activations and clamps give a bound for NaN.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.fx import GraphModule, Node
from torch.nn import functional

from ..transform import recurrence
from . import images, numerics
from . import replacements as our
from .complex_pairs import fourier, inverse_real_fourier, pair_complex, real_fourier
from .converters import translated
from .scalars import read_as_tensors


def decomposed(exported: Any) -> Any:
    """Return a program of the same inputs and outputs in operators that TVM translates, each of one data type."""
    table = _table()
    # transformers registers an operator of its own where it runs experts on a CPU.
    if (experts := getattr(torch.ops.transformers, "grouped_mm_fallback", None)) is not None:
        table[experts.default] = our.grouped_product
    with _views_of_any_strides(exported):
        exported = exported.run_decompositions(table)
    real = pair_complex(exported)
    if real is not exported:
        exported = real.run_decompositions(table)
    drop_checks(exported)
    read_as_tensors(nodes_of(exported.graph_module))
    drop_checks(exported)  # and what nothing reads any more
    _promote_types(exported)
    exported.graph_module.graph.eliminate_dead_code()
    for part in graph_modules(exported.graph_module):
        part.recompile()
    return exported


def drop_checks(exported: Any) -> None:
    """Drop what raises an error by a value, as `torch._check` does, and what is computed for nothing else."""
    aten = torch.ops.aten
    checks = (
        *(aten._assert_scalar.default, aten._assert_async.default, aten._assert_async.msg, aten.item.default),
        *(aten._assert_tensor_metadata.default, aten.sym_constrain_range.default, aten._local_scalar_dense.default),
        aten.sym_constrain_range_for_size.default,
    )
    for node in reversed(nodes_of(exported.graph_module)):
        if node.op == "call_function" and not node.users and (node.target in checks or not node.is_impure()):
            node.graph.erase_node(node)


def graph_modules(module: torch.nn.Module) -> list[Any]:
    """Return the modules of an exported program's graph, and of its branches and loops."""
    return [part for part in module.modules() if isinstance(part, GraphModule)]


def nodes_of(module: torch.nn.Module) -> list[Any]:
    """Return the nodes of an exported program's graph, and of its branches and loops."""
    return [node for part in graph_modules(module) for node in part.graph.nodes]


@contextmanager
def _views_of_any_strides(exported: Any) -> Iterator[None]:
    """Have reshapes in place of a program's views for a while.

    One that was decomposed before has views which hold for the strides of what PyTorch computed, e.g. of attention; our
    decompositions give others, and Relax has none.
    """
    aten = torch.ops.aten
    views = aten.view.default, aten._unsafe_view.default
    before = {node: node.target for node in nodes_of(exported.graph_module) if node.target in views}
    for node in before:
        node.target = aten.reshape.default
    try:
        yield
    finally:
        for node, target in before.items():
            node.target = target


@cache
def _table() -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's decompositions, for all that TVM lacks too, with ours for the operators named."""

    def unless(rightly: Callable[..., bool], op: Any) -> Callable[..., Any]:
        """Return PyTorch's decomposition where TVM does not translate an operator rightly."""
        parts = decomposition_table[op]
        return lambda x, *rest, **named: NotImplemented if rightly(x, *rest, **named) else parts(x, *rest, **named)

    aten = torch.ops.aten
    table = torch.export.default_decompositions()
    has = translated()
    # Those of torch._refs end in the primitives of nvFuser, not in ATen's operators.
    lacking = {op: f for op, f in decomposition_table.items() if op.__name__ not in has and "_refs" not in f.__module__}
    table.update(lacking)
    del table[aten.selu.default]  # into ELU, of which TVM's forgets the scale
    table[aten.grid_sampler_2d.default] = decomposition_table[aten.grid_sampler_2d.default]
    table.update({
        aten.scaled_dot_product_attention.default: our.attention,
        **dict.fromkeys((aten._embedding_bag.default, aten._embedding_bag_forward_only.default), our.embedding_bag),
        aten.index.Tensor: our.index,
        aten.index_put.default: our.index_put,
        aten.max.dim: lambda x, dim, keepdim=False: (x.amax(dim, keepdim), x.argmax(dim, keepdim)),
        aten.min.dim: lambda x, dim, keepdim=False: (x.amin(dim, keepdim), x.argmin(dim, keepdim)),
        # Of integers TVM's takes infinity for a bound that is not there.
        aten.clamp.default: unless(lambda x, *_, **__: x.dtype.is_floating_point, aten.clamp.default),
        aten.any.default: lambda x: x.ne(0).any(list(range(x.dim()))) if x.dim() else x.ne(0),
        **{op: unless(lambda x, *_, **__: x.dtype == torch.bool, op) for op in (aten.any.dim, aten.any.dims)},
        aten.var_mean.correction: lambda x, dim=None, **options: (
            x.var(dim, **options), x.mean(dim, options.get("keepdim", False))
        ),
        # LLVM has no products and sums of bools.
        aten.mul.Tensor: lambda x, y: x & y if _are_flags(x, y) else NotImplemented,
        aten.add.Tensor: lambda x, y, *_, **__: x | y if _are_flags(x, y) else NotImplemented,
        # In other types than float32, which is that of TVM's.
        aten.addmm.default: unless(lambda _, x, *__, **___: x.dtype == torch.float32, aten.addmm.default),
        aten.div.Tensor_mode: _rounded_quotient,
        aten.remainder.Scalar_Tensor: lambda x, y: torch.scalar_tensor(x, dtype=torch.result_type(x, y)).remainder(y),
        aten.select.int: our.select,
        # TVM's rounds to another pixel, except where each pixel is repeated.
        aten.upsample_nearest2d.vec: unless(_repeats_pixels, aten.upsample_nearest2d.vec),
        # TVM's takes the ratio of the sizes for the scale.
        aten.upsample_bilinear2d.vec: unless(_scales_to_whole_sizes, aten.upsample_bilinear2d.vec),
        aten._upsample_bilinear2d_aa.default: images.antialiased(images.triangle, 1),
        aten._upsample_bicubic2d_aa.default: images.antialiased(images.cubic, 2),
        aten.grid_sampler_3d.default: images.sampled_volume,
        aten.max_pool2d_with_indices.default: images.maximum_with_places(aten.max_pool2d_with_indices.default),
        aten.max_pool3d_with_indices.default: images.maximum_with_places(aten.max_pool3d_with_indices.default),
        **{op: images.pooled(op) for op in images.AVERAGES},
        **dict.fromkeys((aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default), images.adaptive_maximum),
        aten.roll.default: our.rolled,
        aten.unfold.default: our.windows,
        aten.unfold_backward.default: our.overlapped,
        # In the order of the values, which is one of those that PyTorch may choose where none is asked for.
        aten.topk.default: lambda x, k, dim=-1, largest=True, sorted=True: (
            NotImplemented if sorted else tuple(x.topk(k, dim, largest))
        ),
        aten.erfc.default: lambda x: 1 - x.erf(),
        aten.cummax.default: our.running_extreme(torch.maximum),
        aten.cummin.default: our.running_extreme(torch.minimum),
        aten.logaddexp.default: our.log_add_exp,
        aten.logcumsumexp.default: our.running(our.log_add_exp),
        aten.kthvalue.default: our.kth_value,
        aten.nanmedian.dim: our.median_of_numbers,
        aten.nanmedian.default: lambda x: x.reshape(-1).nanmedian(0).values,
        aten.searchsorted.Tensor: our.search_sorted,
        aten.histc.default: our.histogram,
        aten._grouped_mm.default: our.grouped_product,
        **dict.fromkeys((aten.__lshift__.Scalar, aten.bitwise_left_shift.Tensor_Scalar), our.shifted(left=True)),
        **dict.fromkeys((aten.__rshift__.Scalar, aten.bitwise_right_shift.Tensor_Scalar), our.shifted(left=False)),
        # In inference mode; in training it is random.
        aten.rrelu_with_noise_functional.default: lambda x, noise, lower=1 / 8, upper=1 / 3, training=False, *_: (
            NotImplemented if training else (functional.leaky_relu(x, (lower + upper) / 2), noise)
        ),
        # TVM's takes floats alone.
        **dict.fromkeys((aten.pow.Scalar, aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor), our.whole_power),
        aten.fmax.default: our.extreme_of_numbers(torch.maximum),
        aten.fmin.default: our.extreme_of_numbers(torch.minimum),
        aten.hypot.default: lambda x, y: (x * x + y * y).sqrt(),
        aten.convolution.default: images.convolution,
        aten.scatter_reduce.two: _scatter_reduced,
        aten.scatter.reduce: _scattered,
        aten.scatter.value_reduce: _scattered,
        aten.index_reduce.default: _index_reduced,
        aten.cat.default: _concatenated,
        aten.native_group_norm.default: images.group_norm,
        aten._native_batch_norm_legit.no_stats: images.batch_norm,
        aten._trilinear.default: _trilinear,
        # Of the shape alone, so that the result is a constant.
        aten.full_like.default: lambda x, value, *, dtype=None, **_: torch.full(x.shape, value, dtype=dtype or x.dtype),
        aten.linalg_vector_norm.default: _norm,
        aten._cdist_forward.default: _distances,
        aten._is_all_true.default: lambda x: x.all(),
        aten._is_any_true.default: lambda x: x.any(),
        aten.erfinv.default: numerics.inverse_error_function,
        aten.lgamma.default: numerics.log_gamma,
        aten.digamma.default: numerics.digamma,
        # Before they become LAPACK's with a check of its error code, which is an effect.
        **dict.fromkeys((aten.linalg_inv.default, aten.inverse.default), numerics.inverse),
        aten.linalg_solve.default: numerics.solve,
        aten._linalg_det.default: numerics.determinant,
        aten._linalg_slogdet.default: numerics.log_determinant,
        aten.linalg_cholesky.default: numerics.cholesky,
        aten.linalg_solve_triangular.default: numerics.solve_triangular,
        aten.cholesky_solve.default: numerics.solve_by_factor,
        aten.cholesky_inverse.default: numerics.inverse_by_factor,
        aten.fake_quantize_per_tensor_affine_cachemask.default: our.fake_quantized,
        aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: our.fake_quantized,
        aten.fake_quantize_per_channel_affine_cachemask.default: our.fake_quantized_channels,
        aten.masked_scatter.default: our.masked_scatter,
        aten.as_strided.default: our.strided,
        aten.exp2.default: lambda x: (x * math.log(2)).exp(),
        aten.copysign.Tensor: lambda x, y: torch.where(y < 0, -x.abs(), x.abs()),
        aten._fft_c2c.default: fourier,
        aten._fft_r2c.default: real_fourier,
        aten._fft_c2r.default: inverse_real_fourier,
        aten._int_mm.default: lambda x, y: x.to(torch.int32) @ y.to(torch.int32),
        **our.quantised(),
        **recurrence.decompositions(),
    })  # fmt: skip
    return table


def _repeats_pixels(x: Tensor, output_size: Any, scale_factors: Any) -> bool:
    sizes = output_size or [int(size * scale) for size, scale in zip(x.shape[2:], scale_factors, strict=True)]
    return all(new % old == 0 for new, old in zip(sizes, x.shape[2:], strict=True))


def _are_flags(*operands: Any) -> bool:
    return all(isinstance(x, Tensor) and x.dtype == torch.bool for x in operands)


def _scales_to_whole_sizes(x: Tensor, output_size: Any, align_corners: bool, scale_factors: Any) -> bool:
    return align_corners or all((n * s).is_integer() for n, s in zip(x.shape[2:], scale_factors or (), strict=False))


def _rounded_quotient(x: Tensor | float, y: Tensor | float, *, rounding_mode: str | None) -> Any:
    """Divide by a number, or a number, as a tensor: TVM takes it for an int32 or a float32."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return NotImplemented
    dtype = torch.result_type(x, y)
    x, y = (each if isinstance(each, Tensor) else torch.scalar_tensor(each, dtype=dtype) for each in (x, y))
    return x.div(y, rounding_mode=rounding_mode)


def _concatenated(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Join tensors of one type, and no empty ones, as a cache that begins is: TVM has no constants without elements."""
    full = [x for x in tensors if x.numel()]
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    plain = len(full) == len(tensors) and all(x.dtype == dtype for x in tensors)
    return NotImplemented if plain or not full else torch.cat([x.to(dtype) for x in full], dim)


def _scattered(x: Tensor, dim: int, index: Tensor, source: Tensor | float, *, reduce: str) -> Tensor:
    """Scatter by the older names of the reductions, of a number too."""
    if not isinstance(source, Tensor):
        source = torch.full(index.shape, source, dtype=x.dtype)
    return x.scatter_reduce(dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])


def _scatter_reduced(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Take means, and leave the elements out that others are scattered to: TVM includes them."""
    if (include_self and reduce != "mean") or index.shape != source.shape or not x.dtype.is_floating_point:
        return NotImplemented
    counts = torch.zeros_like(x).scatter_add(dim, index, torch.ones_like(source))
    if not include_self:
        neutral = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}[reduce]
        x = torch.where(counts > 0, neutral, x)
    if reduce != "mean":
        return x.scatter_reduce(dim, index, source, reduce)
    return x.scatter_add(dim, index, source) / (counts + 1 if include_self else counts.clamp(min=1))


def _index_reduced(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    shape = [-1 if i == dim % x.dim() else 1 for i in range(x.dim())]
    places = index.to(torch.int64).reshape(shape).expand(source.shape)
    return x.scatter_reduce(dim, places, source, reduce, include_self=include_self)


def _norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Take the root of a sum of squares, which is one kernel: PyTorch's decomposition takes absolute values first."""
    if ord != 2 or x.is_complex() or not x.dim():
        return NotImplemented
    x = x if dtype is None else x.to(dtype)
    return (x * x).sum(dim, keepdim).sqrt()


def _distances(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Any:
    difference = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if p == math.inf:
        return difference.amax(-1)
    return (difference**p).sum(-1) ** (1 / p) if p else NotImplemented


def _trilinear(a: Tensor, b: Tensor, c: Tensor, *rest: Any) -> Tensor:
    factors = [a, b, c]
    for i, dims in enumerate(rest[:3]):
        for dim in sorted(dims):
            factors[i] = factors[i].unsqueeze(dim)
    return (factors[0] * factors[1] * factors[2]).sum(list(rest[3]))


# Data types

# Reductions and scans that compute in the data type of their result.
_ACCUMULATING = ("cumsum", "cumprod", "prod", "mean")


def _promote_types(exported: Any) -> None:
    """Cast what elementwise operators take to the type that they compute in: TVM's half of an integer is zero."""
    graph = exported.graph_module.graph
    for node in list(graph.nodes):
        dtype = _computed_in(node) if node.op == "call_function" else None
        if dtype is None:
            continue
        for source in node.all_input_nodes:
            value = source.meta.get("val")
            if not isinstance(value, torch.Tensor) or value.dtype == dtype or _is_condition(node, source):
                continue
            with graph.inserting_before(node):
                cast = graph.call_function(torch.ops.aten._to_copy.default, (source,), {"dtype": dtype})
            cast.meta = {**source.meta, "val": value.to(dtype)}
            node.replace_input_with(source, cast)


def _computed_in(node: Node) -> Any:
    """Return the data type in which an operator computes, or None where it is no matter of types."""
    target, value = node.target, node.meta.get("val")
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(value, torch.Tensor):
        return None
    name = target.overloadpacket.__name__
    if name == "_to_copy" or not (torch.Tag.pointwise in target.tags or name in _ACCUMULATING):
        return None
    if name == "where" or value.dtype != torch.bool:
        return value.dtype
    operands: list[Any] = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in node.args]
    if name.startswith("logical_") or len(operands) != 2:
        return None
    first, second = operands
    return torch.result_type(first, second)


def _is_condition(node: Node, source: Node) -> bool:
    """Return whether a bool operand says where, rather than being computed with."""
    name = getattr(node.target, "__name__", "").split(".")[0]
    return (name == "where" and node.args[0] is source) or (name == "masked_fill" and node.args[1] is source)
