"""Attention: query, key and value by one product, and padding where no vector register divides the tokens.

One product with the columns of three reads its rows once and has longer loops, and it is one task to tune, not three.

The products over a number of tokens such as ViT's 197 have an axis of that extent each, and tiles of a prime number are
one element or all. Zeros are added where query, key and value are permuted anyway, scores of tokens that are none count
nothing in the softmax, and what was computed for them is left out when the heads are joined.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import IRModule, relax, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from .relax_graph import OPAQUE, bound_values, constant_values, function_pass, operator_name, static_shape, uses_of

op: Any = relax.op

_LANES = 16
# Rows of a product's tile in registers; at least one of these should divide its rows.
_TILES = (4, 5, 6, 7, 8)
# Share of the scores that may be added.
_MOST_ADDED = 1 / 3
# Added to a score that counts nothing: less than any that a mask leaves, as in a row that is masked throughout.
_NOTHING = float("-inf")
# Between product and softmax stand a scale, a mask and reshapes.
_BETWEEN, _LONGEST_CHAIN = ("add", "divide", "multiply", "reshape", "subtract"), 6


def join_projections() -> Any:
    """Return a pass that computes products of one tensor with several weights as one, where heads are split behind.

    There, as for the query, key and value of attention, each result is copied in any case: its copy takes its columns
    of the joint result, and the bias is added on the way.
    """
    return function_pass("TchubJoinProjections", lambda mod, func: _Joiner(mod, _projections(func)))


@mutator
class _Joiner(PyExprMutator):
    def __init__(self, mod: IRModule, groups: list[list[Any]]) -> None:
        super().__init__(mod)
        self.groups = {call: group for group in groups for call in group}
        self.joint: dict[Any, Any] = {}  # by the first call of the group

    def visit_call_(self, call: Any) -> Any:
        group = self.groups.get(call)
        if group is None:
            return super().visit_call_(call)
        if group[0] not in self.joint:
            every: list[Any] = [constant_values(one.args[1]) for one in group]
            product = op.matmul(self.visit_expr(call.args[0]), relax.const(np.concatenate(every, axis=1)))
            self.joint[group[0]] = self.builder_.emit(product)
        before, axes = sum(static_shape(one)[-1] for one in group[: group.index(call)]), [len(static_shape(call)) - 1]
        return op.strided_slice(self.joint[group[0]], axes, [before], [before + static_shape(call)[-1]])


def _projections(func: Any) -> list[list[Any]]:
    """Return the products of a function to join, in the order in which they are computed."""
    users, groups = defaultdict[Any, list[Any]](list), defaultdict[Any, list[Any]](list)
    for var, value in bound_values(func).items():
        for used in relax.analysis.free_vars(value):
            users[used].append((var, value))

    def name(value: Any) -> str:
        return operator_name(value) if isinstance(value, relax.Call) else ""

    def splits_heads(var: Any) -> bool:
        """Return whether all that becomes of a product, a bias and a scale apart, is that its heads are permuted."""
        while len(users[var]) == 1:
            (var, step), before = users[var][0], var
            if name(step) == "reshape":
                return len(users[var]) == 1 and name(users[var][0][1]) == "permute_dims"
            if name(step) not in ("add", "multiply"):
                return False
            if any(constant_values(arg) is None for arg in step.args if not arg.same_as(before)):
                return False
        return False

    for var, call in bound_values(func).items():
        if name(call) == "matmul" and str(call.ty.dtype) == "float32":
            weights = constant_values(call.args[1])
            if weights is not None and weights.ndim == 2 and splits_heads(var):
                groups[call.args[0]].append(call)
    return [group for group in groups.values() if len(group) > 1]


def match_calls(func: Any, name: str, match: Callable[[Any, Callable[[Any], Any]], Any]) -> dict[Any, Any]:
    """Return what `match` gives for each call of an operator in a function, by the call; None leaves one out.

    It takes the call, and a function from a value that nothing else uses, in one block of the function, to the call
    that gives it, or None.
    """
    bound, uses = bound_values(func), uses_of(func)

    def producer(value: Any) -> Any:
        call = bound.get(value) if isinstance(value, relax.DataflowVar) and uses[value] == 1 else None
        return call if isinstance(call, relax.Call) else None

    calls = (one for one in bound.values() if isinstance(one, relax.Call) and operator_name(one) == name)
    return {call: one for call in calls if (one := match(call, producer)) is not None}


def follow_scores(
    call: Any, producer: Callable[[Any], Any], softmax_input: Callable[[Any], Any], between: Collection[str]
) -> tuple[Any, tuple[tuple[Any, int], ...]] | None:
    """Return the product of queries and keys of an attention that ends in a product, and what follows before softmax.

    Each step of the latter comes with the number of the argument that holds the scores. None for another product.

    Args:
        softmax_input: gives what a call of a softmax over the last axis reads; None for another call.
        between: operators that may stand between product and softmax.
    """
    softmax, extents = producer(call.args[0]), static_shape(call.args[0])[-2:]
    while softmax is not None and operator_name(softmax) == "reshape":
        softmax = producer(softmax.args[0])
    if softmax is None or (read := softmax_input(softmax)) is None:
        return None
    chain: list[tuple[Any, int]] = []
    step = producer(read)
    while step is not None and operator_name(step) in between and len(chain) < _LONGEST_CHAIN:
        position = next((i for i, arg in enumerate(step.args[:2]) if static_shape(arg)[-2:] == extents), None)
        if position is None:
            return None
        chain.insert(0, (step, position))
        step = producer(step.args[position])
    if step is None or operator_name(step) != "matmul" or str(call.ty.dtype) != "float32":
        return None
    alike = all(static_shape(one)[-2:] == extents for one in (step, *(one for one, _ in chain)))
    return (step, tuple(chain)) if alike else None


def padded_rows(rows: int) -> int:
    """Return the rows that a product is computed for."""
    return next(more for more in range(rows, rows + max(_TILES)) if any(more % tile == 0 for tile in _TILES))


def padded_columns(columns: int) -> int:
    """Return the keys that scores are computed for."""
    return -(-columns // _LANES) * _LANES


def padded(builder: Any, x: Any, extents: Mapping[int, int], *, alone: bool = False) -> Any:
    """Return a tensor with zeros up to some extents, by negative axis.

    Args:
        alone: in a kernel of its own. Within that of a product which it is added to, MetaSchedule would find no
            schedule. A constant needs none: it is padded when the network is compiled.
    """
    shape = static_shape(x)
    after = [extents.get(axis, shape[axis]) - shape[axis] for axis in range(-len(shape), 0)]
    if not any(after):
        return x
    if alone:
        facts = {"primfunc_name_hint": "pad", "primfunc_attrs": {"op_pattern": OPAQUE}}
        return builder.emit(builder.call_te(topi.nn.pad, x, [0] * len(shape), after, **facts))
    return builder.emit(op.nn.pad(x, [width for more in after for width in (0, more)], "constant", 0.0))


@dataclass(frozen=True)
class _Attention:
    """The operators of one attention, and the extents of its scores.

    Attributes:
        scores: the product of queries (heads, rows, width) and keys (heads, width, columns).
        chain: what follows up to the softmax's input, each with the number of the argument that holds the scores.
    """

    scores: Any
    chain: tuple[tuple[Any, int], ...]
    rows: int
    columns: int


@mutator
class _Padder(PyExprMutator):
    def __init__(self, mod: IRModule, matches: dict[Any, _Attention]) -> None:
        super().__init__(mod)
        self.matches = matches

    def visit_call_(self, call: Any) -> Any:
        if (one := self.matches.get(call)) is None:
            return super().visit_call_(call)
        rows, columns = padded_rows(one.rows), padded_columns(one.columns)
        emit = self.builder_.emit
        query, key, value = map(self.visit_expr, (*one.scores.args, call.args[1]))
        x = emit(op.matmul(padded(self.builder_, query, {-2: rows}), padded(self.builder_, key, {-1: columns})))
        counted = relax.const(np.where(np.arange(columns) < one.columns, 0.0, _NOTHING).astype("float32"))
        masked = False
        for number, (step, position) in enumerate(one.chain):
            # Before the last reshapes, where it becomes part of the product's kernel.
            if not masked and all(operator_name(later) == "reshape" for later, _ in one.chain[number:]):
                x, masked = emit(op.add(x, counted)), True
            x = emit(self._again(step, position, x))
        x = emit(op.nn.softmax(x if masked else emit(op.add(x, counted)), axis=-1))
        heads = static_shape(call.args[0])[:-2]
        x = emit(op.reshape(x, (*heads, rows, columns)))
        x = emit(op.matmul(x, padded(self.builder_, value, {-2: columns})))
        return x if rows == one.rows else op.strided_slice(x, axes=[len(heads)], begin=[0], end=[one.rows])

    def _again(self, step: Any, position: int, x: Any) -> Any:
        """Return one of the chain's operators on padded scores."""
        rows, columns = static_shape(x)[-2:]
        if operator_name(step) == "reshape":
            return op.reshape(x, (*static_shape(step)[:-2], rows, columns))
        args = [self.visit_expr(arg) for arg in step.args]
        other = args[1 - position]
        shape = static_shape(other)
        extents = {axis: n for axis, n in ((-2, rows), (-1, columns)) if len(shape) >= -axis and shape[axis] > 1}
        args[position] = x
        args[1 - position] = padded(self.builder_, other, extents, alone=constant_values(other) is None)
        return relax.Call(step.op, args, step.attrs)


def pad_attention() -> Any:
    """Return a pass that pads the tokens of attention where that makes its products faster; float32 alone."""
    return function_pass("TchubPadAttention", lambda mod, func: _Padder(mod, match_calls(func, "matmul", _attention)))


def _attention(call: Any, producer: Callable[[Any], Any]) -> _Attention | None:
    """Return the attention that ends in a product; None for another product, or where padding is not worth it."""
    followed = follow_scores(call, producer, softmax_input, _BETWEEN)
    if followed is None or not all(_is_paddable(step, position) for step, position in followed[1]):
        return None
    scores, chain = followed
    if any(len(static_shape(one)) < 3 for one in (*call.args, *scores.args)):
        return None
    rows, columns = static_shape(call.args[0])[-2:]
    added = padded_rows(rows) * padded_columns(columns) / (rows * columns) - 1
    return _Attention(scores, chain, rows, columns) if 0 < added <= _MOST_ADDED else None


def softmax_input(call: Any) -> Any:
    """Return what a call of a softmax over the last axis reads; None for another call."""
    is_last = operator_name(call) == "nn.softmax" and int(call.attrs.axis) in (-1, call.ty.ndim - 1)
    return call.args[0] if is_last else None


def _is_paddable(step: Any, position: int) -> bool:
    """Return whether a step between products and softmax computes the same of what is there when more is."""
    if operator_name(step) == "reshape":
        return True
    other = step.args[1 - position]
    constant = constant_values(other)
    return operator_name(step) == "add" or (constant is not None and not constant.ndim and position == 0)
