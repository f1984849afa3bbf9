"""The computation and the operator class of a TIR module, from how variables meet in the indices of its blocks.

No name decides, so that a task has one class wherever it comes from: models of statements read it.

The heaviest block with a reduction decides. Two factors make a contraction: a matrix product, or a
convolution where a spatial and a reduction variable share an index (a window). One factor makes a pooling or
a plain reduction.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..features.columns import OPS
from . import computation

if TYPE_CHECKING:
    from tvm import IRModule


_SPATIAL, _REDUCE = 0, 2


class _Window(NamedTuple):
    dim: int
    spatial: int
    reduction: int
    stride: int


def computation_of_module(mod: IRModule) -> str:
    """Return the computation of an unscheduled TIR module, in the form of `computation`.

    Convolutions (also by Winograd's algorithm), depthwise convolutions, matrix products, poolings, plain
    reductions and elementwise functions are named by their sizes; everything else is `other-` and the
    module's structural hash.
    """
    blocks, text = blocks_of(mod), None
    if blocks and all(map(_has_sizes, blocks)):
        if reducing := _reductions(blocks):
            heaviest = max(reducing, key=lambda one: prod(one.extents))
            text = _winograd(blocks) or heaviest.describe(alone=len(reducing) == 1)
        else:
            text = computation.elementwise(_shape(blocks[-1].writes[0].source))
    return text or computation.unknown(task_id(mod))


def task_id(mod: IRModule) -> str:
    """Return 16 hex digits of the structural hash of a TIR module."""
    from tvm_ffi import structural_hash

    return f"{structural_hash(mod) & (2**64 - 1):016x}"


def blocks_of(mod: IRModule) -> list[Any]:
    """Return the blocks of a TIR module that have axes, in the order of the program."""
    from tvm.s_tir.stmt import SBlock
    from tvm_ffi import structural_walk

    blocks: list[Any] = []
    for _, func in mod.functions_items():
        structural_walk(func.body, (SBlock, blocks.append))
    return [block for block in blocks if block.iter_vars]  # the root block has none


def _has_sizes(block: Any) -> bool:
    """Return whether a block has a result, and all extents and shapes are numbers, not variables."""
    shapes = [region.source.shape for region in (*block.reads, *block.writes)]
    sizes = [*(v.dom.extent for v in block.iter_vars), *(extent for shape in shapes for extent in shape)]
    return len(block.writes) > 0 and all(hasattr(size, "value") for size in sizes)


def _reductions(blocks: list[Any]) -> list[Reduction]:
    return [Reduction(block, blocks) for block in blocks if block.init is not None]


def _shape(buffer: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in buffer.shape)


def _source(buffer: Any, blocks: list[Any]) -> tuple[int, ...]:
    """Return the shape of the buffer that a padded or repacked one was copied from."""
    while True:
        makers = [block for block in blocks if block.init is None and block.writes[0].source.same_as(buffer)]
        reads = makers[0].reads if makers else ()
        if len(reads) != 1 or len(reads[0].source.shape) != len(buffer.shape):
            return _shape(buffer)
        buffer = reads[0].source


class Reduction:
    """A block with a reduction: its variables, and the indices under which it reads its one or two factors.

    Attributes:
        extents: of the variables, 0 where one is no number.
        spatial, reduced: positions of the variables that are data-parallel, and of those that are reduced; sizes:
            the extents of either, sorted.
        operator: `Add`, `Max`, ...: the class of TVM's expression by which a result is updated.
        reads: the regions that are read, less the result's own.
    """

    def __init__(self, block: Any, blocks: list[Any]) -> None:
        self.block, self.blocks = block, blocks
        self.vars = [v.var for v in block.iter_vars]
        self.extents = [int(getattr(v.dom.extent, "value", 0)) for v in block.iter_vars]
        kinds = [int(v.iter_type) for v in block.iter_vars]
        self.spatial = {i for i, kind in enumerate(kinds) if kind == _SPATIAL}
        self.reduced = {i for i, kind in enumerate(kinds) if kind == _REDUCE}
        self.sizes = [sorted(self.extents[i] for i in axes) for axes in (self.spatial, self.reduced)]
        self.operator = type(getattr(block.body, "value", None)).__name__
        out = block.writes[0].source
        self.reads = [region for region in block.reads if not region.source.same_as(out)]

    @property
    def factors(self) -> list[Any]:
        """The regions whose indices have reduced variables."""
        return [read for read in self.reads if self.used(read) & self.reduced]

    @property
    def sliding(self) -> set[int]:
        """The variables of a window: reduced ones that share an index with one along which the window moves."""
        variables: set[int] = set()
        for read in self.factors:
            others = {axis for other in self.factors if not other.same_as(read) for axis in self.used(other)}
            variables |= {window.reduction for window in self._windows(read) if window.spatial not in others}
        return variables

    def describe(self, alone: bool) -> str | None:
        """Return the computation; None where it has no name. `alone`: no other block reduces."""
        if len(self.reads) == len(self.factors) == 2:
            return self._contraction(*self.reads)
        return self._pooling(self.reads[0]) if len(self.reads) == 1 and alone else None

    def _contraction(self, data: Any, weight: Any) -> str | None:
        in_data, in_weight = self.used(data) & self.spatial, self.used(weight) & self.spatial
        windows = [w for w in self._windows(data) if w.spatial not in in_weight]
        if not windows:
            m, n = self._size(in_data - in_weight), self._size(in_weight - in_data)
            return computation.matmul(m, n, self._size(self.reduced), self._size(in_data & in_weight))
        if len(windows) != 2:
            return None
        images = self._size(in_data - in_weight - {w.spatial for w in windows})
        source = _source(data.source, self.blocks)
        h, w = (source[window.dim] for window in windows)
        channels = prod(source) // (h * w * images)
        filters = self._size(in_weight)
        groups = channels // self._size(self.reduced - {w.reduction for w in windows})
        kernel, stride = self._kernel(windows)
        if groups == channels == filters and groups > 1:
            return computation.windowed("depthwise", images, channels, h, w, kernel, stride)
        return computation.conv2d(images, channels, h, w, filters, kernel, stride, groups)

    def _pooling(self, data: Any) -> str | None:
        windows, shape = self._windows(data), _source(data.source, self.blocks)
        if not windows:
            axes = [dim for dim, rng in enumerate(data.region) if self._variables(rng.min) & self.reduced]
            return computation.reduction(shape, axes)
        if len(windows) != 2 or len(self.reduced) != 2:
            return None
        h, w = (shape[window.dim] for window in windows)
        others = [extent for dim, extent in enumerate(shape) if dim not in {window.dim for window in windows}]
        kind = "maxpool" if self.operator == "Max" else "avgpool"
        return computation.windowed(kind, others[0], prod(others[1:]), h, w, *self._kernel(windows))

    def _size(self, variables: set[int]) -> int:
        return prod(self.extents[i] for i in variables)

    def _kernel(self, windows: list[_Window]) -> tuple[tuple[int, int], tuple[int, int]]:
        one, two = windows
        return (self.extents[one.reduction], self.extents[two.reduction]), (one.stride, two.stride)

    def _variables(self, index: Any) -> set[int]:
        from tvm.ir import Var
        from tvm_ffi import structural_walk

        used: list[Any] = []
        structural_walk(index, (Var, used.append))
        return {i for i, var in enumerate(self.vars) if any(var.same_as(other) for other in used)}

    def used(self, read: Any) -> set[int]:
        """Return the variables that a read's indices have."""
        return {i for rng in read.region for i in self._variables(rng.min)}

    def _windows(self, read: Any) -> list[_Window]:
        """Return the dimensions indexed by `spatial * stride + reduction * dilation`."""
        from tvm.sym import detect_linear_equation

        windows = []
        for dim, rng in enumerate(read.region):
            used = self._variables(rng.min)
            if len(used & self.spatial) == 1 and len(used & self.reduced) == 1:
                spatial, reduction = min(used & self.spatial), min(used & self.reduced)
                factors = detect_linear_equation(rng.min, self.vars)
                if factors:
                    windows.append(_Window(dim, spatial, reduction, int(factors[spatial])))
        return windows


def _winograd(blocks: list[Any]) -> str | None:
    """Return a convolution in Winograd's form, whose parts TVM names `data_pack`, `bgemm` and `inverse`; else None."""
    parts = {block.name_hint: block for block in blocks}
    if not {"data_pack", "bgemm", "inverse"} <= parts.keys():
        return None
    pack, inverse = (_shape(parts[name].writes[0].source) for name in ("data_pack", "inverse"))
    source = _source(parts["data_pack"].reads[0].source, blocks)
    # NCHW: data_pack (a, a, c, tiles), inverse (k, tiles, m, m); NHWC: (a, a, tiles, c) and (m, m, tiles, k).
    nchw = pack[2] == source[1] and pack[3] == inverse[1]
    filters, tile = (inverse[0], inverse[2]) if nchw else (inverse[3], inverse[0])
    n, c, h, w = source if nchw else (source[0], source[3], source[1], source[2])
    kernel = pack[0] - tile + 1
    return computation.conv2d(n, c, h, w, filters, (kernel, kernel), (1, 1))


# First word of a computation -> operator class.
_OF_WORD = {"maxpool": "pool", "avgpool": "pool", "reduction": "reduce"} | {name: name for name in OPS}
_ONE_CHANNEL_GROUPS = re.compile(r"conv2d-n\d+c(\d+)h.*-g\1")


def operator_class(mod: IRModule, text: str | None = None) -> str:
    """Return the class of a task by its heaviest operator, one of `OPS` except `other`.

    The classes by which RDU keeps a sample representative (paper TCL, section 4). `text` is the module's computation,
    where it is known already.
    """
    return class_of_computation(text or computation_of_module(mod)) or _class_of_blocks(blocks_of(mod))


def flops_of(mod: IRModule) -> float:
    """Return the floating-point operations of a TIR module, 0 where TVM cannot count them, as for some intrinsics."""
    from tvm.s_tir.analysis import estimate_tir_flops

    try:
        return float(estimate_tir_flops(mod))
    except Exception:  # whatever TVM raises: the count is information, not a need
        return 0.0


def product_flops(mod: IRModule) -> float:
    """Return the operations of a module's products, sums of two factors: two for each pair."""
    return 2.0 * sum(prod(one.extents) for one in _reductions(blocks_of(mod)) if len(one.factors) == 2)


def class_of_computation(text: str) -> str | None:
    """Return the class of a computation that has a name; None for `other-...`."""
    word = text.partition("-")[0]
    if word == "matmul" and not text.startswith("matmul-b1m"):
        return "batch_matmul"
    if _ONE_CHANNEL_GROUPS.fullmatch(text):
        return "depthwise"
    return _OF_WORD.get(word) if word != "other" else None


def _class_of_blocks(blocks: list[Any]) -> str:
    """Return the class of a computation without a name (softmax, norms, fused operators), from its reductions."""
    reducing = _reductions(blocks)
    products = [reduction for reduction in reducing if len(reduction.factors) == 2]
    if one := next((product for product in products if product.sliding), None):
        # Depthwise: each channel has a filter of its own, one axis in both factors, and the window alone is summed.
        channels = [one.extents[axis] for axis in one.reduced - one.sliding]
        used = [one.used(read) & one.spatial for read in one.reads]
        own = all(extent == 1 for extent in channels) and len(used) == 2 and used[0] & used[1]
        return "depthwise" if own else "conv2d"
    if any(_sums_after(blocks, reduction) for reduction in reducing if reduction.operator == "Max"):
        return "softmax"
    if any(reduction.sliding for reduction in reducing):
        return "pool"
    if products:
        extents = [products[0].extents[axis] for axis in products[0].spatial]
        return "batch_matmul" if sum(extent > 1 for extent in extents) > 2 else "matmul"
    if any(len(reduction.block.writes) > 1 and reduction.operator == "Add" for reduction in reducing):
        return "norm"
    return "reduce" if reducing else "elementwise"


def _sums_after(blocks: list[Any], maximum: Reduction) -> bool:
    """Return whether a sum over the axes of a maximum depends on it, as in a softmax."""
    derived = list(maximum.block.writes)
    for block in blocks:
        if any(read.source.same_as(write.source) for read in block.reads for write in derived):
            derived += block.writes
            if any(later.operator == "Add" and later.sizes == maximum.sizes for later in _reductions([block])):
                return True
    return False
