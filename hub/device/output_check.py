"""Check of a program's outputs against its task's unscheduled program, on the same seeded random inputs.

Programs whose weights a layout rewrite permuted are left out: TVM drops the permuting block before it builds
(`RemoveWeightLayoutRewriteBlock`), so such a program takes its weights in another order than the task's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tvm import IRModule

# Sums in another order differ by about eps * sqrt(terms); the rest is for operators chained in one task.
_SLACK = 64.0
# Wrong programs are wrong by far; a half-precision sum of thousands of terms may be off by this much.
_MOST = 0.05
_REWRITTEN = "meta_schedule.layout_rewrite_preproc"


def reduction_size(mod: IRModule) -> int:
    """Terms of the largest sum of a TIR module, 1 without one."""
    from tvm.s_tir.stmt import SBlock
    from tvm_ffi import structural_walk

    blocks: list[Any] = []
    for _, func in mod.functions_items():
        structural_walk(func.body, (SBlock, blocks.append))
    sizes = [math.prod(int(v.dom.extent) for v in b.iter_vars if int(v.iter_type) == 2) for b in blocks]
    return max([1, *sizes])


def is_comparable(module_json: str) -> bool:
    """Return whether a scheduled module takes its weights in the task's own order."""
    return _REWRITTEN not in module_json


def tolerance(dtype: np.dtype[Any], reduction: int) -> float:
    """Largest relative difference of two right outputs of a dtype; 0 for integers."""
    if not _is_float(dtype):
        return 0.0
    from ml_dtypes import finfo

    return float(min(_MOST, _SLACK * float(finfo(dtype).eps) * math.sqrt(reduction)))


def _is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether it is one of numpy's floats, or of those that ml_dtypes adds: bfloat16, and floats of 8 bits."""
    return np.issubdtype(dtype, np.floating) or (dtype.kind == "V" and "float" in dtype.name)


def difference(output: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """Largest difference of two arrays, relative to the right values and their mean size; inf where one is not
    finite and the other is."""
    if right.size == 0:
        return 0.0
    if not _is_float(right.dtype):
        return 0.0 if np.array_equal(output, right) else math.inf
    ours, theirs = output.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(finite, np.isfinite(ours)):
        return math.inf
    ours, theirs = ours[finite], theirs[finite]
    if ours.size == 0:
        return 0.0
    size = np.abs(theirs)
    return float(np.max(np.abs(ours - theirs) / np.maximum(size + size.mean(), np.finfo(np.float64).tiny)))


@dataclass(frozen=True)
class ReferenceOutputs:
    """A task's right outputs.

    Attributes:
        outputs: place among the arguments to contents.
        reduction: terms of the task's largest sum.
    """

    outputs: Mapping[int, np.ndarray[Any, Any]]
    reduction: int

    def save(self, path: str) -> None:
        """Write a file that `load_reference` reads."""
        # numpy's format has no name for the types of ml_dtypes.
        plain = {p: v.astype(np.float32) if v.dtype.kind == "V" else v for p, v in self.outputs.items()}
        arrays = {f"output{argument}": values for argument, values in plain.items()}
        arrays |= {f"dtype{argument}": np.array(values.dtype.name) for argument, values in self.outputs.items()}
        with Path(path).open("wb") as file:
            np.savez(file, reduction=np.int64(self.reduction), **arrays)  # type: ignore[arg-type]

    def complaint(self, outputs: Mapping[int, np.ndarray[Any, Any]]) -> str | None:
        """Return what is wrong with a program's outputs, or None."""
        for argument, right in self.outputs.items():
            allowed = tolerance(right.dtype, self.reduction)
            distance = difference(outputs[argument], right)
            if distance > allowed:
                return f"argument {argument} is off by {distance:.2g} (allowed {allowed:.2g})"
        return None


@lru_cache(maxsize=4)
def load_reference(path: str) -> ReferenceOutputs:
    """The reference in a file, kept in memory for the programs to come."""
    import ml_dtypes  # noqa: F401 (numpy then knows bfloat16 by its name)

    with np.load(path) as data:
        arguments = [int(name.removeprefix("output")) for name in data.files if name.startswith("output")]
        outputs = {argument: data[f"output{argument}"].astype(str(data[f"dtype{argument}"])) for argument in arguments}
        return ReferenceOutputs(outputs, int(data["reduction"]))


def written(before: Sequence[np.ndarray[Any, Any]], after: Sequence[np.ndarray[Any, Any]]) -> list[int]:
    """Places of the arguments that a program wrote."""
    return [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if not np.array_equal(old, new)]
