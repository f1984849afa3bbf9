"""The operator class of a module: one answer for tasks that are tuned, collected or imported.

Models of statements read it beside the statements, so that a task must have one class wherever it comes from.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .schema import OPS
from .tir import blocks_of, computation_of_module, share_an_axis

if TYPE_CHECKING:
    from tvm import IRModule

_SPATIAL, _REDUCE = 0, 2  # types of a block's axes
# First word of a computation -> operator class.
_OF_WORD = {"maxpool": "pool", "avgpool": "pool", "reduction": "reduce"} | {name: name for name in OPS}
_ONE_CHANNEL_GROUPS = re.compile(r"conv2d-n\d+c(\d+)h.*-g\1")
# Order matters: the first block name that matches decides.
_OF_BLOCK = (
    ("conv2d", re.compile(r"conv\d?d|conv_nchw")),
    ("softmax", re.compile(r"softmax|expsum")),
    ("pool", re.compile(r"pool")),
    ("matmul", re.compile(r"matmul|dense|gemm")),
    ("norm", re.compile(r"layer_norm|rms_norm|_red_temp|group_norm|instance_norm")),
    ("reduce", re.compile(r"_red$|_red_|sum|mean|argmax|variance")),
)


def operator_class(mod: IRModule, computation: str | None = None) -> str:
    """The class of a task by its heaviest operator, one of `OPS` except `other`.

    The classes by which RDU keeps a sample representative (paper TCL, section 4). What the module computes decides,
    and where that has no name (softmax, norms, fused operators), the names of its blocks.

    Args:
        computation: the module's, where it was told already (`computation_of_module`).
    """
    return class_of_computation(computation or computation_of_module(mod)) or _by_names(blocks_of(mod))


def class_of_computation(text: str) -> str | None:
    """The class of a computation that has a name; None for `other-...`."""
    word = text.partition("-")[0]
    if word == "matmul" and not text.startswith("matmul-b1m"):
        return "batch_matmul"
    if _ONE_CHANNEL_GROUPS.fullmatch(text):
        return "depthwise"
    return _OF_WORD.get(word) if word != "other" else None


def _by_names(blocks: list[Any]) -> str:
    reducing = [block for block in blocks if block.init is not None]
    for name, pattern in _OF_BLOCK:
        for block in reducing:
            if not pattern.search(block.name_hint.lower()):
                continue
            if name == "conv2d" and _is_depthwise(block):
                return "depthwise"
            if name == "matmul" and sum(extent > 1 for extent in _extents(block, _SPATIAL)) > 2:
                return "batch_matmul"
            return name
    return "reduce" if reducing else "elementwise"


def _is_depthwise(block: Any) -> bool:
    """Its channel loop, the first or (channels-last) the last one, runs once, for every channel has its filter."""
    extents = _extents(block, _REDUCE)
    channel = extents[-1:] if "nhwc" in block.name_hint else extents[:1]
    return "depthwise" in block.name_hint.lower() or (channel == [1] and share_an_axis(block))


def _extents(block: Any, kind: int) -> list[int]:
    return [int(v.dom.extent) for v in block.iter_vars if int(v.iter_type) == kind]
