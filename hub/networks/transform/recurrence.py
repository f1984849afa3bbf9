"""Recurrent layers, LSTM, GRU and RNN, as one operator that goes on from step to step, and its kernel for CPUs.

What the inputs give to all steps is one matrix product, tuned as any other. The rest is a product of the last state
with the recurrent weights, and the gates, again and again: one kernel, whose weights are packed by the hidden units
whose gates it computes together in vector registers. Both directions of a layer are two chains of one call.

An import gives a call of `tchub.recurrence.KIND` with the operands of `recurrence`; passes make of it the kernel, or
for a card the operators of each step.
"""

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._decomp import decomposition_table
from tvm import relax

from .quantised import LIMITS, split_weights
from .recurrence_kernel import KINDS, MOST_CODE, recurrence_function, width_of
from .relax_graph import OPAQUE, READ_WEIGHTS, call_pass, constant_values, operator_name, static_shape

op: Any = relax.op

_PREFIX = "tchub.recurrence."
# Bytes of a direction's weights in float32 from which on a quarter of them is worth what rounds the states.
_WORTH_BYTES = 1 << 17
_MOST_SUM = (1 << 31) - 1  # of 32 bits


@torch.library.custom_op("tchub::recurrence", mutates_args=())
def recurrence(
    projected: Tensor, recurrent: Tensor, bias: Tensor, states: list[Tensor], kind: str, backwards: bool
) -> list[Tensor]:
    """Return the states of all steps `[steps, batch, directions, hidden]`, and of an LSTM its last cells.

    Args:
        projected: `[steps, batch, directions, gates, hidden]`, what the inputs and biases give to the gates.
        recurrent: `[directions, gates, hidden, hidden]`, from the last axis.
        bias: `[directions, hidden]`, of the candidate's product with the state in a GRU; elsewhere it is not read.
        states: of each direction before its first step, `[directions, batch, hidden]`, and of an LSTM its cells.
        kind: one of `KINDS`.
        backwards: a single direction begins with the last step, as the second of two does.
    """
    results, cells = torch.empty_like(projected[:, :, :, 0]), []
    for d in range(projected.shape[2]):
        h, c = (*(one[d] for one in states), None)[:2]
        for step in _order(len(projected), d, backwards):
            h, c = _cell(kind, projected[step, :, d], recurrent[d], bias[d], h, c)
            results[step, :, d] = h
        cells += [] if c is None else [c]
    return [results, torch.stack(cells)] if cells else [results]


@recurrence.register_fake
def _shapes(projected: Tensor, recurrent: Tensor, bias: Tensor, states: Any, kind: str, backwards: bool) -> Any:
    return [projected.new_empty(projected[:, :, :, 0].shape), *map(torch.empty_like, states[1:])]


def _order(steps: int, direction: int, backwards: bool) -> Sequence[int]:
    return range(steps)[::-1] if direction or backwards else range(steps)


def _cell(kind: str, now: Any, weights: Any, bias: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """Return state and cell `[batch, hidden]` after a step."""
    gates = dict(zip(kind.partition("_")[0] if KINDS[kind] > 1 else "h", range(KINDS[kind]), strict=True))

    def product(letter: str, state: Any = h) -> Any:
        return state @ weights[gates[letter]].T

    def gate(letter: str) -> Any:
        return now[:, gates[letter]]

    if c is not None:
        i, f, g, o = (gate(letter) + product(letter) for letter in "ifgo")
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if KINDS[kind] == 1:
        return getattr(gate("h") + product("h"), kind)(), None
    r, z = ((gate(letter) + product(letter)).sigmoid() for letter in "rz")
    before = kind.endswith("before")
    n = (gate("n") + (product("n", r * h) if before else r * (product("n") + bias))).tanh()
    return n + z * (h - n), None


# From PyTorch


def decompositions() -> dict[Any, Any]:
    """Return PyTorch's recurrent layers in matrix products and `recurrence`, for its table of decompositions."""
    aten = torch.ops.aten
    kinds = {aten.lstm.input: "ifgo", aten.gru.input: "rzn", aten.rnn_tanh.input: "tanh", aten.rnn_relu.input: "relu"}
    return {operator: _decomposition(operator, kind) for operator, kind in kinds.items()}


def _decomposition(operator: Any, kind: str) -> Any:
    def layers(
        x: Tensor, hx: Any, params: Any, biases: bool, layers: int, dropout: float, train: bool, both: bool, first: bool
    ) -> Any:
        count, states = 1 + both, list(hx) if kind == "ifgo" else [hx]
        each, lasts = 2 + 2 * biases, list[Any]()
        if len(params) != each * count * layers or (train and dropout) or not x.dtype.is_floating_point:
            return decomposition_table[operator](x, hx, params, biases, layers, dropout, train, both, first)
        y = x.transpose(0, 1) if first else x
        for layer in range(layers):
            own = [params[each * (count * layer + d) :][:each] for d in range(count)]
            begin = [one[count * layer :][:count] for one in states]
            y, *last = _layer(kind, y, own, begin)
            lasts.append(last)
        ends = lasts[0] if layers == 1 else [torch.cat(one) for one in zip(*lasts, strict=True)]
        return y.transpose(0, 1) if first else y, *ends

    return layers


def _layer(kind: str, x: Tensor, params: Sequence[Sequence[Tensor]], states: list[Tensor]) -> list[Tensor]:
    """Return the outputs `[steps, batch, directions * hidden]` of a layer and its last states.

    Args:
        params: of each direction, the weights of the inputs and of the states, and their biases if there are any.
    """
    (steps, batch, _), count, gates = x.shape, len(params), KINDS[kind]
    hidden = states[0].shape[-1]
    inputs, recurrent, *biases = (torch.cat([*one]) for one in zip(*params, strict=True))
    projected = x.reshape(steps * batch, -1) @ inputs.T
    bias = x.new_zeros(count, hidden)
    if biases:
        ours, theirs = (one.reshape(count, gates, hidden) for one in biases)
        if kind == "rzn":  # the candidate's is multiplied by the reset gate
            bias, theirs = theirs[:, 2], torch.cat([theirs[:, :2], torch.zeros_like(theirs[:, 2:])], 1)
        projected = projected + (ours + theirs).reshape(-1)
    y, *cells = torch.ops.tchub.recurrence(
        projected.reshape(steps, batch, count, gates, hidden), recurrent.reshape(count, gates, hidden, hidden), bias,
        states, kind, False,
    )  # fmt: skip
    last = torch.stack([y[-1, :, 0], *([y[0, :, 1]] if count > 1 else [])])
    return [y.reshape(steps, batch, count * hidden), last, *cells]


def convert(node: Any, importer: Any) -> Any:
    """Translate `recurrence` for TVM's importer of PyTorch."""
    projected, recurrent, bias, states, kind, backwards = importer.retrieve_args(node)
    call = importer.block_builder.emit(marker(projected, recurrent, bias, states, kind, backwards))
    return call if len(states) > 1 else relax.Tuple([call])


def marker(projected: Any, recurrent: Any, bias: Any, states: Sequence[Any], kind: str, backwards: bool) -> Any:
    """Return the Relax call that stands for `recurrence`; of one result where there are no cells."""
    steps, batch, directions, _, hidden = static_shape(projected)
    dtype = str(projected.ty.dtype)
    shape: Any = [steps, batch, directions, hidden]
    types = [relax.TensorType(shape, dtype), *(one.ty for one in states[1:])]
    name = f"{_PREFIX}{kind}{'.backwards' * backwards}"
    return op.call_dps_packed(name, relax.Tuple([projected, recurrent, bias, *states]), out_ty=types)


# Passes


def recurrences(cpu: bool, lanes: int = 16, pairs: bool = False) -> Any:
    """Return a pass that computes recurrent layers by one kernel each, or for a card step by step.

    Args:
        lanes: numbers of a CPU's vector register.
        pairs: see `prepare.for_inference`.
    """

    def rewrite(builder: Any, call: Any) -> Any:
        name = call.args[0].global_symbol if operator_name(call) == "call_dps_packed" else ""
        if not name.startswith(_PREFIX):
            return call
        kind, _, backwards = name.removeprefix(_PREFIX).partition(".")
        operands = list(call.args[1].fields)
        compute = partial(_kernel_call, lanes, pairs) if cpu else _steps
        return compute(builder, kind, bool(backwards), *operands)

    return call_pass("TchubRecurrences", rewrite)


def _kernel_call(
    lanes: int, pairs: bool, builder: Any, kind: str, backwards: bool, projected: Any, recurrent: Any, *rest: Any
) -> Any:
    directions, gates, hidden, _ = static_shape(recurrent)
    width = width_of(hidden, gates, lanes)
    tiles = ceil(hidden / width)
    scales, whole, most, group = None, None, 0, 1
    if pairs and gates * hidden * hidden * 4 >= _WORTH_BYTES and rest[0].ty.dtype == "float32":
        whole = _whole_weights(constant_values(recurrent))
    if whole is not None:
        recurrent = relax.const(whole[0])
        scales = relax.const(np.pad(whole[1], ((0, 0), (0, 0), (0, tiles * width - hidden))))
        largest_sum = int(np.abs(whole[0].astype("int64")).sum(axis=-1).max(initial=1))
        most, group = min(MOST_CODE, _MOST_SUM // largest_sum), 2
    groups = ceil(hidden / group)
    for axis, padding in ((2, tiles * width - hidden), (3, groups * group - hidden)):
        if padding:
            shape = [*static_shape(recurrent)]
            shape[axis] = padding
            zeros = builder.emit(op.full(shape, relax.const(0, recurrent.ty.dtype), recurrent.ty.dtype))
            recurrent = builder.emit(op.concat([recurrent, zeros], axis=axis))
    packed = builder.emit(op.reshape(recurrent, [directions, gates, tiles, width, groups, group]))
    packed = builder.emit(op.permute_dims(packed, [0, 2, 4, 1, 3, 5]))
    packed = builder.emit(op.reshape(packed, [directions, tiles, groups, gates, width * group]))
    names = {"primfunc_name_hint": "recurrence", "primfunc_attrs": {"op_pattern": OPAQUE, READ_WEIGHTS: [1]}}
    options = {"kind": kind, "backwards": backwards, "lanes": lanes, "most": most}
    return builder.call_te(recurrence_function, projected, packed, scales, *rest, **options, **names)


def _whole_weights(weights: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return weights `[directions, gates, hidden, hidden]` as int8 and scales `[directions, gates, hidden]`, or None.

    As networks have them whose recurrent layers were quantised without a zero point.
    """
    if weights is None or (split := split_weights(weights.reshape(-1, weights.shape[-1]).T)) is None:
        return None
    (whole, scales), (least, most) = split, LIMITS["int8"]
    if whole.min() < least or whole.max() > most:
        return None
    return whole.T.reshape(weights.shape).astype("int8"), scales.reshape(weights.shape[:3])


def _steps(builder: Any, kind: str, backwards: bool, projected: Any, recurrent: Any, bias: Any, *states: Any) -> Any:
    """Return the operators of each step."""
    steps, batch, directions, gates, hidden = static_shape(projected)
    wide, letters = gates * hidden, kind.partition("_")[0] if gates > 1 else "h"
    emit = builder.emit

    def part(x: Any, axis: int, at: int, shape: Sequence[int]) -> Any:
        return emit(op.reshape(emit(op.strided_slice(x, [axis], [at], [at + 1])), shape))

    results, cells = [], []
    for d in range(directions):
        weights = emit(op.permute_dims(part(recurrent, 0, d, [wide, hidden]), [1, 0]))
        now, own = part(projected, 2, d, [steps, batch, wide]), part(bias, 0, d, [hidden])
        h, *cell = (part(one, 0, d, [batch, hidden]) for one in states)
        outputs: dict[int, Any] = {}
        for step in _order(steps, d, backwards):
            h, *cell = _step(emit, kind, letters, part(now, 0, step, [batch, wide]), weights, own, h, *cell)
            outputs[step] = emit(op.reshape(h, [1, batch, 1, hidden]))
        results.append(emit(op.concat([outputs[step] for step in range(steps)], axis=0)))
        cells += [emit(op.reshape(one, [1, batch, hidden])) for one in cell]
    joined = [emit(op.concat(some, axis)) for some, axis in ((results, 2), (cells, 0)) if some]
    return relax.Tuple(joined) if cells else joined[0]


def _step(emit: Any, kind: str, letters: str, now: Any, weights: Any, bias: Any, h: Any, *cell: Any) -> list[Any]:
    hidden = static_shape(h)[1]

    def gate(x: Any, letter: str) -> Any:
        at = letters.index(letter) * hidden
        return emit(op.strided_slice(x, [1], [at], [at + hidden]))

    product = emit(op.matmul(h, weights))
    if len(letters) == 4:
        both = emit(op.add(now, product))
        i, f, o = (emit(op.sigmoid(gate(both, letter))) for letter in "ifo")
        new = emit(op.multiply(i, emit(op.tanh(gate(both, "g")))))
        c = emit(op.add(emit(op.multiply(f, cell[0])), new))
        return [emit(op.multiply(o, emit(op.tanh(c)))), c]
    if len(letters) == 1:
        activation = op.tanh if kind == "tanh" else op.nn.relu
        return [emit(activation(emit(op.add(now, product))))]
    r, z = (emit(op.sigmoid(emit(op.add(gate(now, letter), gate(product, letter))))) for letter in "rz")
    if kind.endswith("before"):
        product = emit(op.matmul(emit(op.multiply(r, h)), weights))
    own = gate(product, "n")
    own = own if kind.endswith("before") else emit(op.multiply(r, emit(op.add(own, bias))))
    n = emit(op.tanh(emit(op.add(gate(now, "n"), own))))
    return [emit(op.add(n, emit(op.multiply(z, emit(op.subtract(h, n))))))]
