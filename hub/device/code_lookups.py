"""Tables of 256 numbers of 8 bits that are looked up by AVX-512's permutations, up to 64 codes at once.

A quantised network's activations are such tables (`networks.transform.code_tables`). LLVM would read them number by
number. They must be read from loops that are vectorised.
"""

from typing import Any

import tvm
from tvm import DataType, s_tir, tirx
from tvm.ir import TensorLoad
from tvm.target import codegen
from tvm.tirx import Cast, IntImm
from tvm_ffi import structural_map

from .statements import LOOPS, nodes_in, with_lowered

EXTENSION = "avx512vbmi"
"""LLVM's name of what a CPU must have."""
_CODES, _LANES = 256, 64
# It takes 64 of 128 numbers, of two registers.
_PERMUTE = "llvm.x86.avx512.vpermi2var.qi.512"
_VECTORS = tvm.transform.Sequential(
    [
        LOOPS,
        tirx.transform.FlattenBuffer(),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(),
    ]
)
_load: Any = tirx.BufferLoad
_ramp: Any = tirx.Ramp
_select: Any = tirx.Select
_shuffle: Any = tirx.Shuffle


def looks_up(target: Any) -> bool:
    """Return whether a `tvm.target.Target` is of a CPU that looks up codes of 8 bits at once."""
    return target.kind.name == "llvm" and EXTENSION in map(str, codegen.llvm_get_cpu_features(target))


def with_lookups(mod: Any, target: Any) -> Any:
    """Return a scheduled `IRModule` that looks up several codes at once in tables of 256 numbers of 8 bits.

    Args:
        target: a `tvm.target.Target` of a CPU; with one that cannot, the module stays as it is.
    """
    if not looks_up(target):
        return mod

    def changed(func: Any) -> Any:
        return func.with_body(structural_map(func.body, (TensorLoad, _looked_up)))

    return with_lowered(mod, lambda func: any(map(_is_look, nodes_in(func.body, TensorLoad))), changed, _VECTORS)


def _is_look(load: Any) -> bool:
    """Return whether a load is from a table of 256 numbers of 8 bits, at a code of 8 bits."""
    shape, dtype = load.source.ty.shape, DataType(str(load.source.ty.dtype))
    if len(shape) != 1 or not isinstance(shape[0], IntImm) or int(shape[0]) != _CODES or dtype.bits != 8:
        return False
    return isinstance(load.indices[0], Cast) and str(load.indices[0].value.ty.dtype).startswith("uint8")


def _looked_up(load: Any) -> Any:
    """Return what a load of several numbers of a table gives, by permutations; another load as it is."""
    codes = load.indices[0].value if _is_look(load) else None
    lanes = 1 if codes is None else DataType(str(codes.ty.dtype)).lanes
    if lanes == 1 or _LANES % lanes:
        return load
    vector = f"{DataType(str(load.ty.dtype)).with_lanes(1)}x{_LANES}"
    index = _shuffle([codes] * (_LANES // lanes), list(range(_LANES))) if lanes < _LANES else codes
    parts = [_load(load.source, [_ramp(begin, 1, _LANES)]) for begin in range(0, _CODES, _LANES)]
    halves = [tirx.call_llvm_pure_intrin(vector, _PERMUTE, one, index, other) for one, other in (parts[:2], parts[2:])]
    result = _select(index < tirx.const(_CODES // 2, f"uint8x{_LANES}"), *halves)
    return _shuffle([result], list(range(lanes))) if lanes < _LANES else result
