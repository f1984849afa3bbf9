"""Products of a quantised network as sums of whole numbers, which its scales follow.

A quantised network says that (q - z) * s is multiplied by w * t, where q and w are whole numbers of 8 bits. Then the
sum of (q - z) * w is a whole number, which float32 has exactly up to 2 ** 24, in whatever order it is added up, and
s * t is the factor of a column. So how a network rounds, and with it its output, does not depend on schedules, and is
as ONNX Runtime does. A CPU with AMX, VNNI or SDOT multiplies the numbers of 8 bits themselves.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal

from ....zoo.tile_instructions import TILES, Factors
from .byte_products import MOST_TERMS, padding_of, same_product, sums_of_bytes
from .computed_products import is_worth_bytes, product_of_bytes
from .quantised import APPROXIMATE, LIMITS, POOL, QuantisedData, QuantisedReader, as_number, split_weights, whole_bias
from .relax_graph import (
    bound_to,
    bound_values,
    call_pass,
    constant_address,
    constant_values,
    function_pass,
    is_channels_last,
    operator_name,
    static_shape,
)
from .tile_shapes import shape_of

op: Any = relax.op


def whole_products(of_bytes: Sequence[Factors] = ()) -> Any:
    """Return a Relax pass that puts the scales of a quantised network behind its products.

    Args:
        of_bytes: the factors by which products that fill tiles multiply numbers of 8 bits, which kernels then store,
            see `tile_instructions.TILES`; without, there are none.
    """
    known: dict[Any, Any] = {}  # of constants that several products share
    constants: dict[Any, Any] = {}

    def weights_of(value: Any) -> Any:
        address = constant_address(value)
        key = address, static_shape(value)
        if key not in known:
            split = split_weights(constant_values(value)) if address is not None else None
            known[key] = value, split  # whose address nothing else may have then
        return known[key][1]

    def constant(weights: np.ndarray, dtype: str) -> Any:
        key = id(weights), dtype  # `known` keeps them
        if key not in constants:
            constants[key] = relax.const(weights.astype(dtype))
        return constants[key]

    return function_pass("TchubWholeProducts", lambda mod, func: _Rewriter(mod, func, weights_of, constant, of_bytes))


def shifted_bounds() -> Any:
    """Return a Relax pass that cuts off codes less their zero point, where they are not stored in 8 bits.

    min(max(round(x) + z, a), b) - z is min(max(round(x), a - z), b - z), two operations less in what follows a product.
    """

    def rewrite(builder: Any, call: Any) -> Any:
        codes, chain = call, list[Any]()
        if str(getattr(call.ty, "dtype", "")) != "float32" or not call.ty.ndim:
            return call
        for name in ("subtract", "minimum", "maximum", "add", "round"):
            codes = bound_to(builder, codes, name)
            if codes is None:
                return call
            chain.append(codes)
            codes = codes.args[0]
        zero, most, least, added = (constant_values(one.args[1]) for one in chain[:4])
        if zero is None or most is None or least is None or added is None:
            return call
        if not structural_equal(call.ty, chain[-1].ty):
            return call
        if {one.size for one in (zero, most, least, added)} != {1} or zero.flat[0] != added.flat[0]:
            return call
        below, above = (as_number(one.flat[0] - zero.flat[0]) for one in (least, most))
        return op.minimum(builder.emit(op.maximum(chain[3].args[0], below)), above)

    return call_pass("TchubShiftedBounds", rewrite)


@mutator
class _Rewriter(PyExprMutator):
    """Rewrites a function.

    Args:
        weights_of: gives the whole numbers of a constant and their scales, or None.
        constant: gives whole numbers as a constant of a type.
    """

    def __init__(
        self,
        mod: Any,
        func: Any,
        weights_of: Callable[[Any], Any],
        constant: Callable[[np.ndarray, str], Any],
        of_bytes: Sequence[Factors],
    ) -> None:
        super().__init__(mod)
        self._weights_of, self._constant, self._of_bytes = weights_of, constant, of_bytes
        self._sums: dict[Any, None] = {}  # of products of whole numbers, in float32
        self._stored: dict[Any, str] = {}  # types of 8 bits by the call whose codes are stored so
        values = bound_values(func)
        own = QuantisedReader(values.get)
        rounded = (one.args[0] for one in values.values() if _is_call(one, "round"))
        # Other products of data, as before a softmax in float32, may be a part of one function.
        self._quantised = {product: None for value in rounded for product in own.sources(value, "matmul")}
        for call in values.values() if of_bytes else ():
            for data in self._data_in_bytes(own, call):
                source = codes = own.call(data.codes, "minimum")
                while codes is not None and (before := own.unchanged(codes)) is not None:
                    source = codes = own.call(before.codes, "minimum")
                self._stored[source] = data.dtype
        self._reader = QuantisedReader(self.builder_.lookup_binding)

    def visit_call_(self, call: Any) -> Any:
        new: Any = super().visit_call_(call)
        name, emit = operator_name(new), self.builder_.emit
        dtype = self._stored.get(call, "")
        same = self._reader.unchanged(new) if name == "minimum" else None
        if same is not None and (not dtype or self._reader.in_bytes(same.codes) is not None):
            return self._viewed(same, same.codes)
        if dtype:
            return op.astype(emit(op.astype(emit(new), dtype)), "float32")
        if name == "round":
            return self._without_division(new)
        if name in ("add", "subtract") and (left := self._unchanged_sum(new)) is not None:
            return left
        if (data := self._data_of_pool(self._reader, new)) is not None:
            return self._pool(new, data)
        if (data := self._data_of_product(self._reader, new)) is not None:
            return self._product(new, data)
        pair = self._data_of_factors(self._reader, new) if call in self._quantised else None
        return new if pair is None else self._product_of_data(new, *pair)

    def _unchanged_sum(self, call: Any) -> Any:
        """Return what a zero point of 0 or a mask that masks nothing is added to; None where something is added.

        Other zeros stay, as a bias that was never trained.
        """
        left, right = call.args
        for value, added in ((left, right), (right, left))[: 2 if operator_name(call) == "add" else 1]:
            number = constant_values(added)
            if number is None or number.any() or not structural_equal(call.ty, value.ty):
                continue
            if number.size == 1 or self._reader.data(value) is not None:
                return value
        return None

    def _data_in_bytes(self, reader: QuantisedReader, call: Any) -> Iterable[QuantisedData]:
        """Return the data that a call reads in 8 bits."""
        if (data := self._data_of_pool(reader, call)) is not None:
            return [data]
        if (data := self._data_of_product(reader, call)) is not None:
            return [data] if self._fills_tiles(reader, call, data) else []
        pair = self._data_of_factors(reader, call) if call in self._quantised else None
        return pair if pair is not None and self._are_worth_bytes(reader, call, pair) else []

    def _data_of_pool(self, reader: QuantisedReader, call: Any) -> QuantisedData | None:
        """Return the data of a call where it takes the maxima of what is quantised."""
        is_pool = isinstance(call, relax.Call) and operator_name(call) == POOL
        data = reader.data(call.args[0]) if is_pool else None
        if data is None or data.scale is None:
            return None
        return data if data.scale_values is not None and data.scale_values.flat[0] > 0 else None

    def _pool(self, call: Any, data: QuantisedData) -> Any:
        """Return the maxima of codes, scaled: a scale leaves their order as it is."""
        emit, stored = self.builder_.emit, self._reader.in_bytes(data.codes)
        codes = self._viewed(data, data.codes if stored is None else stored)
        result = emit(relax.Call(call.op, [codes], call.attrs))
        if stored is not None:
            result = emit(op.astype(result, "float32"))
        if data.zero is not None:
            result = emit(op.subtract(result, data.zero))
        return op.multiply(result, data.scale)

    def _data_of_product(self, reader: QuantisedReader, call: Any) -> QuantisedData | None:
        """Return the data of a call where it is a product of such by weights that are quantised, too."""
        if not isinstance(call, relax.Call) or str(getattr(call.ty, "dtype", "")) != "float32":
            return None
        is_image = operator_name(call) == "nn.conv2d" and is_channels_last(call)
        data = reader.data(call.args[0]) if is_image or operator_name(call) == "matmul" else None
        return data if data is not None and self._weights_of(call.args[1]) is not None else None

    def _data_of_factors(self, reader: QuantisedReader, call: Any) -> tuple[QuantisedData, QuantisedData] | None:
        """Return the data of both factors of a call where it is a product of quantised data by such data."""
        is_call = isinstance(call, relax.Call) and str(getattr(call.ty, "dtype", "")) == "float32"
        if not is_call or operator_name(call) != "matmul":
            return None
        left, right = (reader.data(one) for one in call.args)
        if left is None or right is None or left.scale_values is None or right.scale_values is None:
            return None
        return left, right

    def _are_worth_bytes(self, reader: QuantisedReader, call: Any, pair: tuple[QuantisedData, QuantisedData]) -> bool:
        known = all(one.zero_values is not None and reader.is_in_bytes(one.zero, one.dtype) for one in pair)
        return bool(self._of_bytes and known and is_worth_bytes(call, self._of_bytes[0]))

    def _fills_tiles(self, reader: QuantisedReader, call: Any, data: QuantisedData) -> bool:
        """Return whether a product is one of tiles of 8 bits."""
        weights = self._weights_of(call.args[1])[0]
        fits = weights.max() - weights.min() <= LIMITS["uint8"][1] and weights[..., 0].size <= MOST_TERMS
        shape = shape_of(call) if fits and reader.is_in_bytes(data.zero, data.dtype) else None
        return bool(shape and replace(shape, factors=self._of_bytes[0]).fitted.is_worth_tiles)

    def _product(self, call: Any, data: QuantisedData) -> Any:
        """Return a product of whole numbers, times the scales."""
        emit = self.builder_.emit
        weights, scales = self._weights_of(call.args[1])
        on_tiles = self._of_bytes and self._fills_tiles(self._reader, call, data)
        stored = self._reader.in_bytes(data.codes) if on_tiles else None
        if stored is not None:
            product = sums_of_bytes(emit, call, data, self._viewed(data, stored), weights, self._constant)
        else:
            weights = self._constant(weights, "float32")
            product = emit(same_product(call, self._shifted(data), weights, padding_of(call), None))
        self._sums[product] = None
        columns, factor = [1] * (call.ty.ndim - 1) + [-1], data.scale_values
        if factor is None:
            product = emit(op.multiply(product, relax.const(scales.reshape(columns))))
            return op.multiply(product, emit(op.reshape(data.scale, [1] * call.ty.ndim)))
        scales = (scales * factor.flat[0]).reshape(columns)
        return product if (scales == 1).all() else op.multiply(product, relax.const(scales))

    def _product_of_data(self, call: Any, left: QuantisedData, right: QuantisedData) -> Any:
        """Return a product of whole numbers by whole numbers, times both scales."""
        emit, pair = self.builder_.emit, (left, right)
        stored = [self._reader.in_bytes(one.codes) for one in pair]
        if self._are_worth_bytes(self._reader, call, pair) and all(one is not None for one in stored):
            factors = self._of_bytes[[one.data for one in TILES].index(left.dtype)]
            codes = [self._permuted(*one) for one in zip(pair, stored, strict=True)]
            zeros = int(left.zero_values.flat[0]), int(right.zero_values.flat[0])
            product = emit(op.astype(emit(product_of_bytes(self.builder_, codes, zeros, factors)), "float32"))
        else:
            product = emit(op.matmul(self._shifted(left), self._shifted(right)))
        self._sums[product] = None
        scale = np.float32(left.scale_values.flat[0]) * np.float32(right.scale_values.flat[0])
        return product if scale == 1 else op.multiply(product, relax.const(scale.reshape([1] * call.ty.ndim)))

    def _shifted(self, data: QuantisedData) -> Any:
        """Return what data are multiples of, in float32: whole numbers."""
        shifted, emit = data.codes, self.builder_.emit
        if data.zero is not None:  # before the views, as a part of the kernel that gives the codes
            known = data.zero_values
            zero = emit(op.reshape(data.zero, [1])) if known is None else as_number(known.flat[0])
            shifted = emit(op.subtract(shifted, zero))
        return self._viewed(data, shifted)

    def _viewed(self, data: QuantisedData, value: Any) -> Any:
        """Return a value in the shapes that data have."""
        for view in reversed(data.views):
            value = self.builder_.emit(relax.Call(view.op, [value, *view.args[1:]], view.attrs))
        return value

    def _permuted(self, data: QuantisedData, value: Any) -> tuple[Any, list[int]]:
        """Return a value in the shapes that data have, but for a permutation at the end, and the order of its axes."""
        first = data.views[0] if data.views else None
        if first is None or operator_name(first) != "permute_dims" or not first.attrs.axes:
            value = self._viewed(data, value)
            return value, list(range(value.ty.ndim))
        return self._viewed(replace(data, views=data.views[1:]), value), list(map(int, first.attrs.axes))

    def _without_division(self, call: Any) -> Any:
        """Return the rounding of a quotient that needs no division.

        What is divided by a scale has been multiplied by one, or is a sum of such values, as where a network adds a
        residual. So do other runtimes compute it, and their rounding is ours then. What no runtime computes exactly
        alike, as a softmax, is multiplied by the inverse, in a tenth of the time.
        """
        value, factor = self._reader.scaled(call.args[0])
        if factor is None:
            return call
        operate, by = factor
        quotient, emit = self._quotient(value, factor), self.builder_.emit
        added = self._reader.call(value, "add") if quotient is None else None
        if added is not None:
            parts = [self._quotient(one, factor, data=True) for one in added.args]
            if all(one is not None for one in parts):
                quotient = op.add(*map(emit, parts))
            else:
                left, right = added.args
                ways = (self._quotient_with_bias(*pair, factor) for pair in ((left, right), (right, left)))
                quotient = next((one for one in ways if one is not None), None)
        by_scale = operate is np.divide and str(value.ty.dtype) == "float32" and value.ty.ndim > 0
        if quotient is None and by_scale and next(self._reader.sources(value, *APPROXIMATE), None) is not None:
            quotient = op.multiply(value, as_number(np.float32(1) / by))
        return call if quotient is None else op.round(emit(quotient))

    def _quotient(self, value: Any, factor: tuple[Any, Any], *, data: bool = False) -> Any:
        """Return a product's value, or of `data` a quantised one, times a number; None for another one."""
        scaled, (operate, by) = self._reader.call(value, "multiply"), factor
        quantised = self._reader.data(value) if data else None
        if scaled is not None and (scaled.args[0] in self._sums or quantised is not None):
            scales, unscaled = constant_values(scaled.args[1]), scaled.args[0]
        elif quantised is not None and quantised.scale_values is not None:  # reshaped afterwards
            scales, unscaled = quantised.scale_values.reshape([1] * value.ty.ndim), self._shifted(quantised)
        else:
            return None
        if scales is None or scales.dtype != np.float32:
            return None
        return op.multiply(unscaled, relax.const(operate(scales, by).astype("float32")))

    def _quotient_with_bias(self, value: Any, bias: Any, factor: tuple[Any, Any]) -> Any:
        """Return a quantised product plus its bias, times a number; the bias becomes one of the whole numbers."""
        scaled = self._reader.call(value, "multiply")
        if scaled is None:
            return None
        scales, biases = constant_values(scaled.args[1]), constant_values(bias)
        if scales is None or scaled.args[0] not in self._sums:
            return None
        added, emit, sums = whole_bias(biases, scales), self.builder_.emit, scaled.args[0]
        if added is None:
            return None
        whole = self._reader.argument(sums, "astype")
        if whole is not None and str(whole.ty.dtype) == "int32":
            shift = self._reader.call(whole, "subtract")
            if shift is not None and (before := constant_values(shift.args[1])) is not None:
                whole, added = shift.args[0], added - before
            sums = emit(op.astype(emit(op.add(whole, relax.const(added))), "float32"))
        else:
            sums = emit(op.add(sums, relax.const(added.astype("float32"))))
        operate, by = factor
        return op.multiply(sums, relax.const(operate(scales, by).astype("float32")))


def _is_call(value: Any, name: str) -> bool:
    return isinstance(value, relax.Call) and operator_name(value) == name
