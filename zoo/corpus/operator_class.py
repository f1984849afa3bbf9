"""The operator class of a module: one answer for tasks that are tuned, collected or imported.

Models of statements read it beside the statements, so that a task must have one class wherever it comes from.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .schema import OPS
from .tir import Reduction, blocks_of, computation_of_module, share_an_axis

if TYPE_CHECKING:
    from tvm import IRModule

# First word of a computation -> operator class.
_OF_WORD = {"maxpool": "pool", "avgpool": "pool", "reduction": "reduce"} | {name: name for name in OPS}
_ONE_CHANNEL_GROUPS = re.compile(r"conv2d-n\d+c(\d+)h.*-g\1")


def operator_class(mod: IRModule, computation: str | None = None) -> str:
    """The class of a task by its heaviest operator, one of `OPS` except `other`.

    The classes by which RDU keeps a sample representative (paper TCL, section 4). What the module computes decides,
    never how its blocks are named: equal modules have one class.

    Args:
        computation: the module's, where it was told already (`computation_of_module`).
    """
    return class_of_computation(computation or computation_of_module(mod)) or _class_of_blocks(blocks_of(mod))


def class_of_computation(text: str) -> str | None:
    """The class of a computation that has a name; None for `other-...`."""
    word = text.partition("-")[0]
    if word == "matmul" and not text.startswith("matmul-b1m"):
        return "batch_matmul"
    if _ONE_CHANNEL_GROUPS.fullmatch(text):
        return "depthwise"
    return _OF_WORD.get(word) if word != "other" else None


def _class_of_blocks(blocks: list[Any]) -> str:
    """The class of a computation without a name (softmax, norms, fused operators), from its reductions."""
    reducing = [Reduction(block, blocks) for block in blocks if block.init is not None]
    products = [reduction for reduction in reducing if len(reduction.factors) == 2]
    if convolutions := [product for product in products if product.sliding]:
        return "depthwise" if _is_depthwise(convolutions[0]) else "conv2d"
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


def _is_depthwise(convolution: Reduction) -> bool:
    """Whether each channel has a filter of its own: beside the window, nothing is summed."""
    channels = [convolution.extents[axis] for axis in convolution.reduced - convolution.sliding]
    return all(extent == 1 for extent in channels) and share_an_axis(convolution.block)


def _sums_after(blocks: list[Any], maximum: Reduction) -> bool:
    """Whether a sum over the axes of a maximum depends on it, as in a softmax."""
    derived = list(maximum.block.writes)
    for block in blocks:
        if any(read.source.same_as(write.source) for read in block.reads for write in derived):
            derived += block.writes
            later = Reduction(block, blocks) if block.init is not None else None
            if later and later.operator == "Add" and later.sizes == maximum.sizes:
                return True
    return False
