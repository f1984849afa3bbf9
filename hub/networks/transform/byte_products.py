"""Sums of a quantised product that reads numbers of 8 bits: what zero points add to them, and what lies around images.

The sum of (q - z) * (w + k) is that of q * w, less z times the sum of w, plus k times the sum of q - z. Weights of int8
have no k; those of uint8 less a zero point are numbers of int8 and one k. The sum of q - z is that of a window, alike
for all outputs.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from .quantised import LIMITS, QuantisedData
from .relax_graph import convolved, operator_name, static_shape

op: Any = relax.op

MOST_TERMS = (1 << 24) // 255
"""Terms whose sum float32 has exactly, of numbers of 8 bits."""


def sums_of_bytes(
    emit: Callable[[Any], Any],
    call: Any,
    data: QuantisedData,
    codes: Any,
    weights: np.ndarray,
    constant: Callable[[np.ndarray, str], Any],
) -> Any:
    """Return the sums of a product, in float32, that reads numbers of 8 bits.

    Args:
        emit: binds a call to a variable.
        call: the product.
        codes: of its data, in 8 bits and of the data's shape.
        weights: whole numbers, of which the largest is at most 255 more than the least.
        constant: gives whole numbers as a constant of a type.
    """
    zero, padding = data.zero_values, padding_of(call)
    if any(padding) and (zero is None or zero.any()):
        codes, padding = _padded(emit, codes, padding, data), [0] * 4
    least, most = LIMITS["int8"]
    shift = 0 if least <= weights.min() and weights.max() <= most else int(weights.max()) - most
    whole = weights - np.float32(shift)
    # The constants that products share are those of whole weights.
    factor = relax.const(whole.astype("int8")) if shift else constant(weights, "int8")
    sums, ndim = emit(same_product(call, codes, factor, padding, "int32")), call.ty.ndim
    if data.zero is not None:
        totals = whole.reshape(-1, whole.shape[-1]).sum(axis=0, dtype="int32")
        sums = emit(op.subtract(sums, _times_zero(emit, data, totals, ndim)))
    if shift:
        of_data = emit(op.astype(_window_sums(emit, call, codes, padding), "int32"))
        if data.zero is not None:
            terms = np.full(1, whole[..., 0].size, "int32")
            of_data = emit(op.subtract(of_data, _times_zero(emit, data, terms, ndim)))
        sums = emit(op.add(sums, emit(op.multiply(of_data, relax.const(np.full([1] * ndim, shift, "int32"))))))
    return emit(op.astype(sums, "float32"))


def padding_of(call: Any) -> list[int]:
    """Return the rows and columns around the image of a convolution: top, left, bottom, right."""
    return [*map(int, call.attrs.padding)] if operator_name(call) == "nn.conv2d" else []


def same_product(call: Any, data: Any, weights: Any, padding: list[int], out_dtype: str | None) -> Any:
    """Return the product of other factors."""
    if operator_name(call) == "matmul":
        return op.matmul(data, weights, out_dtype)
    return convolved(call, data, weights, padding, out_dtype)


def _times_zero(emit: Callable[[Any], Any], data: QuantisedData, numbers: np.ndarray, ndim: int) -> Any:
    """Return numbers (outputs,), of int32, times the zero point of data, in so many axes."""
    zero, numbers = data.zero_values, numbers.reshape([1] * (ndim - 1) + [-1])
    if zero is not None:
        return relax.const(numbers * np.int32(zero.flat[0]))
    number = emit(op.reshape(emit(op.astype(data.zero, "int32")), [1] * ndim))
    return emit(op.multiply(number, relax.const(numbers)))


def _padded(emit: Callable[[Any], Any], codes: Any, padding: Sequence[int], data: QuantisedData) -> Any:
    """Return an image of codes with the zero point around it, which may be known when the network runs."""
    (top, left, bottom, right), zero = padding, data.zero_values
    width, value = [0, 0, top, bottom, left, right, 0, 0], 0.0 if zero is None else float(zero.flat[0])
    codes = emit(op.nn.pad(codes, width, "constant", value))
    if zero is not None:
        return codes
    _, rows, columns, _ = static_shape(codes)
    inside = np.zeros((1, rows, columns, 1), bool)
    inside[:, top : rows - bottom, left : columns - right] = True
    around = emit(op.reshape(emit(op.astype(data.zero, data.dtype)), [1] * 4))
    return emit(op.where(relax.const(inside), codes, around))


def _window_sums(emit: Callable[[Any], Any], call: Any, codes: Any, padding: list[int]) -> Any:
    """Return the sum of the codes that each result of a product reads, in float32, for one output."""
    sums = emit(op.sum(emit(op.astype(codes, "float32")), [-1], True))
    kernel, strides = static_shape(call.args[1])[:-2], map(int, getattr(call.attrs, "strides", []))
    if prod(kernel) == 1 and max(strides, default=1) == 1:
        return sums
    return emit(same_product(call, sums, relax.const(np.ones((*kernel, 1, 1), np.float32)), padding, None))
