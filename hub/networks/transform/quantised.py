"""What a quantised network multiplies: the whole numbers that its data and its weights stand for, and their scales.

Quantised data are (codes - zero point) * scale, and weights are whole numbers times a scale for each output. A network
has both in float32 as it is imported.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from .relax_graph import constant_values, operator_name, static_shape

LIMITS = {name: (np.iinfo(name).min, np.iinfo(name).max) for name in ("uint8", "int8")}
"""The least and the largest number of each type of 8 bits."""
POOL = "nn.max_pool2d"
_VIEWS = ("reshape", "permute_dims")
_NORMS = "nn.group_norm", "nn.instance_norm", "nn.layer_norm", "nn.log_softmax", "nn.rms_norm", "nn.softmax"
_ACTIVATIONS = "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus", "sigmoid", "tanh"
APPROXIMATE = (*_NORMS, *_ACTIVATIONS, "erf", "exp", "log", "rsqrt")
"""Functions that every runtime approximates in its own way."""
# What is computed element by element, and how many values are looked at.
_ELEMENTWISE, _MOST_VALUES = ("add", "divide", "maximum", "minimum", "multiply", "subtract", *_VIEWS), 64
# Magnitudes that the largest whole number of a column may have: most tools give each column the first one.
_LARGEST = (127, *range(1, 127), *range(128, 256))
_SAMPLE = 64  # rows by which a magnitude is ruled out
# A weight is the product of a whole number and a scale, rounded; and the scale is a quotient here.
_ROUNDING = 4 * float(np.finfo(np.float32).eps)
# How far a bias may be from a whole number, of at most so much, that it stands for: its scale is rounded, too.
_NEAR, _MOST_BIAS = 1e-2, 1 << 24


def split_weights(values: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the whole numbers that weights (..., outputs) are multiples of, and their scales (outputs,), in float32.

    None where they are of no whole numbers up to 255, the largest difference of two numbers of 8 bits.
    """
    if values is None or values.ndim < 2 or str(values.dtype) != "float32" or not np.isfinite(values).all():
        return None
    columns = values.reshape(-1, values.shape[-1]).astype(np.float64)
    largest = np.abs(columns).max(axis=0, initial=0.0)
    if largest.max() <= _LARGEST[-1] and (columns == np.rint(columns)).all():
        return values, np.ones(values.shape[-1], np.float32)
    scales, left = np.ones_like(largest), largest > 0
    for most in _LARGEST:
        candidates = np.flatnonzero(left)
        if not candidates.size:
            break
        for rows in (slice(_SAMPLE), slice(None)):
            whole = columns[rows][:, candidates] / (largest[candidates] / most)
            off = np.abs(whole - np.rint(whole)) - _ROUNDING * np.abs(whole)
            candidates = candidates[(off <= 0).all(axis=0)]
        scales[candidates], left[candidates] = largest[candidates] / most, False
        if candidates.size and left.any():  # a tensor's columns have one scale
            others, scale = np.flatnonzero(left), scales[candidates[0]]
            whole = columns[:, others] / scale
            off = np.abs(whole - np.rint(whole)) - _ROUNDING * np.abs(whole)
            alike = others[(off <= 0).all(axis=0) & (largest[others] <= _LARGEST[-1] * scale)]
            scales[alike], left[alike] = scale, False
    if left.any():
        return None
    whole = np.rint(columns / scales).astype(np.float32)
    return whole.reshape(values.shape), _exact_scales(whole, values.reshape(whole.shape), scales.astype(np.float32))


def _exact_scales(whole: np.ndarray, weights: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the scales by which whole numbers give weights bit for bit, where there are such next to these."""
    result = scales.copy()
    for other in (np.nextafter(scales, np.float32(0)), np.nextafter(scales, np.float32(np.inf)), scales):
        equal = (whole * other == weights).all(axis=0)
        result[equal] = other[equal]
    return result


def whole_bias(biases: Any, scales: np.ndarray) -> np.ndarray | None:
    """Return the whole numbers, of int32, that times some scales are a bias; None where there are none such."""
    if biases is None or not 0 < biases.ndim <= scales.ndim or biases.size not in (1, biases.shape[-1]):
        return None
    if biases.size not in (1, scales.size) or not (np.isfinite(biases).all() and scales.all()):
        return None
    whole = biases.reshape(-1) / scales.reshape(-1).astype(np.float64)
    if np.abs(whole - np.rint(whole)).max() > _NEAR or np.abs(whole).max() > _MOST_BIAS:
        return None
    return np.broadcast_to(np.rint(whole).astype("int32"), (scales.size,)).reshape(scales.shape)


@dataclass(frozen=True)
class QuantisedData:
    """Data of a product: (codes - zero) * scale, in other shapes.

    Attributes:
        codes: whole numbers, in float32; dtype: of 8 bits, that has them.
        zero: None for 0; scale: None for 1; both have one number.
        views: calls between them and the product, the last one first.
    """

    codes: Any
    dtype: str
    zero: Any
    scale: Any
    views: tuple[Any, ...]

    @property
    def zero_values(self) -> Any:
        """Return the zero point as an array of one number; None where it is computed."""
        return np.zeros(1) if self.zero is None else constant_values(self.zero)

    @property
    def scale_values(self) -> Any:
        """Return the scale as an array of one number; None where it is computed."""
        return np.ones(1, "float32") if self.scale is None else constant_values(self.scale)


class QuantisedReader:
    """Finds quantised data among the calls of a function.

    Args:
        lookup: gives what a variable is bound to, or None.
    """

    def __init__(self, lookup: Callable[[Any], Any]) -> None:
        self._lookup = lookup

    def call(self, value: Any, *names: str) -> Any:
        """Return the call of one of some operators that a value is, or is bound to; None for any other."""
        while isinstance(value, relax.Var):
            value = self._lookup(value)
        return value if isinstance(value, relax.Call) and operator_name(value) in names else None

    def argument(self, value: Any, name: str) -> Any:
        """Return the first argument of the call of an operator that a value is; None for any other, and for None."""
        call = self.call(value, name)
        return None if call is None else call.args[0]

    def data(self, value: Any) -> QuantisedData | None:
        """Return what a value is made of; None where it is not quantised."""
        views, scales = list[Any](), list[Any]()
        value, scale = self._less(value, "multiply", views)
        while scale is not None:  # a network may scale what is quantised
            scales.append(scale)
            value, scale = self._less(value, "multiply", views)
        value, zero = self._less(value, "subtract", views)
        codes, _ = self._less(value, "", views)
        known = [values.flat[0] for one in scales if (values := constant_values(one)) is not None]
        if len(scales) > 1 and len(known) < len(scales):
            return None
        scale = as_number(prod(known)) if len(scales) > 1 else next(iter(scales), None)
        dtype, values = self.code_type(codes), constant_values(zero) if zero is not None else None
        if not dtype or not (zero is None or self._is_whole(zero)):
            return None
        zero = None if values is not None and not values.any() else zero
        return QuantisedData(codes, dtype, zero, scale, tuple(views))

    def _less(self, value: Any, name: str, views: list[Any]) -> tuple[Any, Any]:
        """Return what an operator and a number give a value of, and the number or None; views go to `views`."""
        while (view := self.call(value, *_VIEWS)) is not None:
            views.append(view)
            value = view.args[0]
        change = self.call(value, name) if name else None
        if change is None or not _is_number(change.args[1]) or not _same_shape(change, change.args[0]):
            return value, None
        return change.args

    def sources(self, value: Any, *names: str) -> Iterator[Any]:
        """Yield the calls of some operators that a value is computed from, with nothing but what is elementwise behind.

        Of a long computation it is the last calls that are looked at.
        """
        pending = [value]
        for _ in range(_MOST_VALUES):
            value = pending.pop() if pending else None
            if isinstance(value, relax.Var):
                pending.append(self._lookup(value))
            elif isinstance(value, relax.Call) and operator_name(value) in names:
                yield value
            elif isinstance(value, relax.Call) and operator_name(value) in _ELEMENTWISE:
                pending.extend(value.args)

    def in_bytes(self, codes: Any) -> Any:
        """Return the numbers of 8 bits of which codes are the floats; None where they are not."""
        numbers = self.argument(codes, "astype")
        return numbers if numbers is not None and str(numbers.ty.dtype) in LIMITS else None

    def code_type(self, codes: Any) -> str:
        """Return the type of 8 bits that has some numbers, which are rounded and cut off; empty where none has."""
        if (stored := self.in_bytes(codes)) is not None:
            return str(stored.ty.dtype)
        if (pool := self.call(codes, POOL)) is not None:
            return self.code_type(self._less(pool.args[0], "", [])[0])
        bounds = self.bounds(codes)
        return next((name for name, limits in LIMITS.items() if limits == bounds), "")

    def bounds(self, codes: Any) -> tuple[float, ...] | None:
        """Return the least and the most number of what is rounded and cut off; None for any other value."""
        most = self.call(codes, "minimum")
        least = None if most is None else self.call(most.args[0], "maximum")
        if most is None or least is None:
            return None
        shifted: Any = self.call(least.args[0], "add")  # by a zero point
        rounded = self.call(least.args[0] if shifted is None else shifted.args[0], "round")
        if rounded is None or not (shifted is None or self._is_whole(shifted.args[1])):
            return None
        known = [values for one in (least, most) if (values := constant_values(one.args[1])) is not None]
        return tuple(float(one.item()) for one in known) if [one.size for one in known] == [1, 1] else None

    def _is_whole(self, value: Any) -> bool:
        """Return whether floats are known to be whole numbers."""
        values = constant_values(value)
        if values is not None:
            return bool((values == np.round(values)).all())
        while (view := self.call(value, *_VIEWS)) is not None:
            value = view.args[0]
        numbers = self.argument(value, "astype")
        of_integers = numbers is not None and "int" in str(numbers.ty.dtype)
        return of_integers or self.call(value, "round") is not None or bool(self.code_type(value))

    def unchanged(self, call: Any) -> QuantisedData | None:
        """Return the data whose codes a `minimum` gives again, as it quantises what they stand for, or None."""
        below = self.argument(call.args[0], "maximum")
        shifted: Any = self.call(below, "add")
        value, factor = self.scaled(self.argument(below if shifted is None else shifted.args[0], "round"))
        if factor is None:
            return None
        data = self.data(value)
        if data is None or data.scale is None or self.code_type(call) != data.dtype or not _same_shape(call, value):
            return None
        zero, before = np.zeros(1) if shifted is None else constant_values(shifted.args[1]), data.zero_values
        if (
            zero is None
            or zero.size > 1
            or before is None
            or zero.flat[0] != before.flat[0]
            or data.scale_values is None
        ):
            return None
        operate, by = factor
        return data if abs(operate(data.scale_values.flat[0], by) - 1) <= _ROUNDING else None

    def scaled(self, value: Any) -> tuple[Any, Any]:
        """Return what a value is a constant number times, or divided by it, and how; None for both of any other value.

        How is NumPy's operator, and the number.
        """
        call = self.call(value, "divide", "multiply")
        number = constant_values(call.args[1]) if call is not None else None
        if (
            call is None
            or number is None
            or number.size != 1
            or not number.all()
            or not _same_shape(call, call.args[0])
        ):
            return None, None
        by = number.astype("float32").flat[0]
        return call.args[0], (np.divide if operator_name(call) == "divide" else np.multiply, by)

    def is_in_bytes(self, zero: Any, dtype: str) -> bool:
        """Return whether a zero point is known to be a number of a type of 8 bits; None stands for 0."""
        values = np.zeros(1) if zero is None else constant_values(zero)
        if values is not None:
            least, most = LIMITS[dtype]
            return bool(least <= values.flat[0] <= most)
        while self.in_bytes(zero) is None and (view := self.call(zero, *_VIEWS, "astype", "round")) is not None:
            zero = view.args[0]
        upper = self.call(zero, "minimum")
        if upper is None or (lower := self.call(upper.args[0], "maximum")) is None:
            return self.in_bytes(zero) is not None
        limits = [constant_values(one.args[1]) for one in (lower, upper)]
        least, most = min(LIMITS["int8"]), max(LIMITS["uint8"])
        return all(one is not None and one.min() >= least and one.max() <= most for one in limits)


def as_number(value: Any) -> Any:
    """Return a number as a constant of one axis, which stays an argument of the functions that read it."""
    return relax.const(np.array([value], np.float32))


def _same_shape(one: Any, other: Any) -> bool:
    return one.ty.ndim == other.ty.ndim and static_shape(one) == static_shape(other)


def _is_number(value: Any) -> bool:
    known = value.ty.ndim == 0 or static_shape(value)
    return bool(str(value.ty.dtype) == "float32" and known) and prod(static_shape(value)) == 1
