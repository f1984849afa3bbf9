"""Rounding to 8 bits by the instructions of x86 that do so.

A quantised network rounds each result, cuts it off at the ends of 8 bits and stores it. TVM computes these as five
operations on floats; one instruction rounds to whole numbers, and another one cuts off as it stores.
"""

from typing import Any

from tvm import IRModule, tirx
from tvm.tirx import Cast, FloatImm, PrimFunc
from tvm_ffi import structural_map

from .extensions import is_x86, vector_lanes
from .statements import call_name

_MOST_ZERO = 1 << 22  # to which float32 has each whole number that a bound less a zero point may be
_LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
# It rounds half to even, and what has no number of 32 bits, or is none, becomes the least one.
_WHOLE = "llvm.lrint"
_least: Any = tirx.Min
_most: Any = tirx.Max


def saturating(mod: Any, target: Any) -> Any:
    """Return a scheduled module that rounds to 8 bits by the instructions for it; on other CPUs than x86 as it is.

    Each result is the same, bit for bit.

    Args:
        mod: an `IRModule`, before its loops are vectorised.
        target: a `tvm.target.Target` of a CPU.
    """
    if not is_x86(target):
        return mod
    wide = vector_lanes(target) == 16  # AVX-512 stores numbers without a sign, too

    def instructions(cast: Any) -> Any:
        return _saturated(cast, wide)

    def changed(func: Any) -> Any:
        return func.with_body(structural_map(func.body, (Cast, instructions)))

    functions = {var: changed(func) if isinstance(func, PrimFunc) else func for var, func in mod.functions_items()}
    return IRModule(functions, mod.attrs, mod.global_infos)


def _saturated(cast: Any, wide: bool) -> Any:
    """Return a cast to 8 bits of what is rounded and cut off, by less operations; another cast as it is."""
    dtype = str(cast.ty.dtype)
    value, *bounds = _cut_off(cast.value)
    if dtype not in _LIMITS or not bounds or str(value.ty.dtype) != "float32":
        return cast
    zero: Any = value.b if isinstance(value, tirx.Add) else None
    rounded: Any = value if zero is None else value.a
    (least, most), limits = bounds, _LIMITS[dtype]
    if not _is_rounded(rounded) or not limits[0] <= least <= most <= limits[1]:
        return cast
    x, unsigned = rounded.args[0], wide and least == 0
    if zero is not None:
        if not _is_whole(zero) or abs(zero.value) > _MOST_ZERO:
            return cast
        shift = int(zero.value)
        low, high = (tirx.const(one - shift, "float32") for one in (least, most))
        return (_whole(_least(_most(x, low), high)) + shift).astype(dtype)
    low, high = (tirx.const(one, "float32") for one in (least, most))
    # One bound is enough before: what is beyond the other one, and has no number of 32 bits, is the least of these.
    whole = _whole(_most(x, low) if unsigned else _least(high, x))
    if unsigned:
        return _least(whole.astype("uint32"), tirx.const(most, "uint32")).astype(dtype)
    return _most(_least(whole, tirx.const(most, "int32")), tirx.const(least, "int32")).astype(dtype)


def _whole(x: Any) -> Any:
    return tirx.call_llvm_pure_intrin("int32", _WHOLE, x)


def _is_whole(value: Any) -> bool:
    return isinstance(value, FloatImm) and float(value.value).is_integer()


def _cut_off(value: Any) -> tuple[Any, ...]:
    """Return what is cut off, and at which whole numbers; of another value nothing but the value."""
    lower: Any = value.a if isinstance(value, tirx.Min) else None
    if not isinstance(lower, tirx.Max):
        return (value,)
    bounds: Any = lower.b, value.b
    return (lower.a, *(int(one.value) for one in bounds)) if all(map(_is_whole, bounds)) else (value,)


def _is_rounded(value: Any) -> bool:
    return call_name(value) in ("tirx.round", "tirx.nearbyint")
