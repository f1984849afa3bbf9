"""Sums of convolutions of one tensor as one convolution, as in networks that were trained with parallel branches.

RepVGG, MobileOne and FastViT add a 3x3 convolution, a 1x1 convolution and the input itself, each with a batch norm of
its own. A convolution is linear, so that the sum of their weights, around one centre, computes the same.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from .quantised import QuantisedReader
from .relax_graph import bound_values, constant_values, function_pass, operator_name, static_shape, uses_of

op: Any = relax.op

_CONVOLUTIONS = "nn.conv2d", "nn.conv3d"


def join_parallel_convolutions() -> Any:
    """Return a Relax pass that computes sums of convolutions of one tensor as one; weights are constants there.

    The largest kernel of a sum has to cover the others, so that the one convolution takes fewer operations.
    """
    return function_pass("TchubJoinParallelConvolutions", _Joiner)


@dataclass(frozen=True)
class _Term:
    """A summand of an image: a value times a factor for each channel.

    Attributes:
        value: a variable, or None for the factor alone.
        call: the convolution that the value is, if nothing else reads it.
    """

    value: Any | None
    factor: np.ndarray
    call: Any = None


@dataclass(frozen=True)
class _JoinedSum:
    """A sum with at least one joined convolution.

    Attributes:
        convolutions: each with the weights to compute it with.
        others: what is added to them.
    """

    convolutions: Sequence[tuple[Any, np.ndarray]]
    others: Sequence[_Term]


@mutator
class _Joiner(PyExprMutator):
    def __init__(self, mod: Any, func: Any) -> None:
        super().__init__(mod)
        self._bound, self._uses = bound_values(func), uses_of(func)
        self._sums: dict[Any, _JoinedSum] = {}
        inside = set[Any]()
        for var, call in reversed(self._bound.items()):
            if var in inside or not _is_sum(call):
                continue
            terms = self._parts(var, np.ones(static_shape(call)[1]), static_shape(call), inside)
            if (joined := _joined(terms, static_shape(call), QuantisedReader(self._bound.get))) is not None:
                self._sums[call] = joined

    def _terms(self, value: Any, factor: np.ndarray, shape: tuple[int, ...], inside: set[Any]) -> list[_Term]:
        """Return the summands of a value, times a factor; `inside` takes the variables that are looked into."""
        if (constant := _by_channel(value, shape)) is not None:
            return [_Term(None, factor * constant)]
        is_own = static_shape(value) == shape and self._uses[value] == 1
        return self._parts(value, factor, shape, inside) if is_own else [_Term(value, factor)]

    def _parts(self, value: Any, factor: np.ndarray, shape: tuple[int, ...], inside: set[Any]) -> list[_Term]:
        """Return the summands of what a variable is bound to; see `_terms`."""
        call: Any = self._bound.get(value)
        name = operator_name(call) if hasattr(call, "op") else ""
        inside.add(value)
        if name in ("add", "subtract"):
            x, y = call.args
            sign = 1.0 if name == "add" else -1.0
            return [*self._terms(x, factor, shape, inside), *self._terms(y, sign * factor, shape, inside)]
        if name == "multiply":
            for x, y in (call.args, reversed(call.args)):
                if (constant := _by_channel(y, shape)) is not None:
                    return self._terms(x, factor * constant, shape, inside)
        return [_Term(value, factor, call if name in _CONVOLUTIONS else None)]

    def visit_call_(self, call: Any) -> Any:
        joined = self._sums.get(call)
        if joined is None:
            return super().visit_call_(call)
        emit, axes = self.builder_.emit, len(static_shape(call))

        def by_channel(values: np.ndarray) -> Any:
            return relax.const(values.reshape(1, -1, *[1] * (axes - 2)).astype("float32"))

        values: list[Any] = [
            emit(relax.Call(one.op, [self.visit_expr(one.args[0]), relax.const(weights)], one.attrs))
            for one, weights in joined.convolutions
        ]
        shift = sum(term.factor for term in joined.others if term.value is None)
        if np.any(shift):
            values[0] = emit(op.add(values[0], by_channel(np.asarray(shift))))
        for term in joined.others:
            if term.value is not None:
                value = self.visit_expr(term.value)
                is_plain = bool(np.all(term.factor == 1.0))
                values.append(value if is_plain else emit(op.multiply(value, by_channel(term.factor))))
        total = values[0]
        for value in values[1:-1]:
            total = emit(op.add(total, value))
        return op.add(total, values[-1]) if len(values) > 1 else total


def _is_sum(call: Any) -> bool:
    is_sum = hasattr(call, "op") and operator_name(call) in ("add", "subtract", "multiply")
    return is_sum and len(static_shape(call)) > 2 and str(call.ty.dtype) == "float32"


def _by_channel(value: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return a constant as one number for each channel; None where it has others, or is none."""
    values = constant_values(value)
    if values is None:
        return None
    wide = [1] * (len(shape) - values.ndim) + [*values.shape]
    is_wide = len(wide) == len(shape) and all(n == 1 for axis, n in enumerate(wide) if axis != 1)
    return np.broadcast_to(values.reshape(-1).astype(float), shape[1]) if is_wide else None


def _joined(terms: Sequence[_Term], shape: tuple[int, ...], reader: QuantisedReader) -> _JoinedSum | None:
    """Join the convolutions of a sum; None where there is nothing to join.

    Those of quantised data stay apart: joined weights are not of 8 bits any more.
    """
    groups: dict[Any, list[_Term]] = defaultdict(list)
    for term in terms:
        if term.call is not None and _is_centred(term.call) and reader.data(term.call.args[0]) is None:
            attrs = term.call.attrs
            groups[term.call.args[0], str(attrs.strides), int(attrs.groups)].append(term)
    results, taken = [], list[_Term]()
    for (source, _, count), convolutions in groups.items():
        largest: Any = max(convolutions, key=lambda term: np.prod(_kernel(term.call))).call
        covered = [term for term in convolutions if _covers(largest, term.call)]
        strided = any(int(step) > 1 for step in largest.attrs.strides)
        # An input that is added as it is stays so: the convolution's kernel adds it, and as a part of the weights it
        # would take the precision of half floats from the others.
        own = [] if strided or static_shape(source) != shape else [t for t in terms if source.same_as(t.value)]
        own = [term for term in own if not np.all(term.factor == 1.0)]
        if len(covered) < 2 and not own:
            continue
        weights = np.zeros(static_shape(largest.args[1]))
        for term in covered:
            given: Any = constant_values(term.call.args[1])
            edges = [(b - s) // 2 for b, s in zip(_kernel(largest), _kernel(term.call), strict=True)]
            inner = tuple(slice(e, e + s) for e, s in zip(edges, _kernel(term.call), strict=True))
            weights[(..., *inner)] += given * term.factor.reshape(-1, *[1] * (given.ndim - 1))
        centre = [size // 2 for size in _kernel(largest)]
        channels = np.arange(shape[1])
        for term in own:
            weights[(channels, channels % (shape[1] // count), *centre)] += term.factor
        results.append((largest, weights.astype("float32")))
        taken += covered + own
    others = [term for term in terms if not any(term is one for one in taken)]
    return _JoinedSum(results, others) if results else None


def _kernel(call: Any) -> tuple[int, ...]:
    return static_shape(call.args[1])[2:]


def _is_centred(call: Any) -> bool:
    """Return whether a convolution of constant weights reads as far before each element as behind it."""
    attrs, kernel = call.attrs, _kernel(call)
    padding, dilation = ([*map(int, each)] for each in (attrs.padding, attrs.dilation))
    edges = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
    is_plain = str(attrs.data_layout).startswith("NC") and str(attrs.kernel_layout).startswith("OI")
    is_plain = is_plain and attrs.out_layout in ("", attrs.data_layout)
    is_even = all(edge % 2 == 0 for edge in edges) and padding == [edge // 2 for edge in edges] * 2
    return is_plain and is_even and bool(kernel) and constant_values(call.args[1]) is not None


def _covers(larger: Any, call: Any) -> bool:
    """Return whether each element that a convolution reads is one that a larger one reads."""
    dilations = zip(larger.attrs.dilation, call.attrs.dilation, strict=True)
    steps = [size == 1 or int(a) == int(b) for size, (a, b) in zip(_kernel(call), dilations, strict=True)]
    odd = [(b - s) % 2 == 0 and b >= s for b, s in zip(_kernel(larger), _kernel(call), strict=True)]
    return all(steps) and all(odd)
