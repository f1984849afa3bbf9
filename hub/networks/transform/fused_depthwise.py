"""A convolution and the depthwise one behind it as one function, some channels after the other.

An inverted bottleneck (MobileNet, EfficientNet) expands its channels by a 1x1 convolution before it filters each of
them, and the first layer of such networks does so with an image's colours. As two functions the expanded image, several
times larger than what comes before and after, goes to memory and back. Here some of its channels, and of these a band
of rows, are computed and filtered while they are in the core's caches; where bands meet, a few rows are computed twice.
MetaSchedule finds the design space by the annotation `schedule_rule`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx import IntImm, const

from .elementwise import blocks_before, followers
from .exponentials import FAST_SIGMOID, fast_sigmoid
from .fused_attention import compute_in_registers, in_registers
from .relax_graph import (
    TAKES_ELEMENTWISE,
    bound_values,
    constant_values,
    extents_of,
    function_pass,
    is_channels_last,
    operator_name,
    static_shape,
    uses_of,
)  # fmt: skip
from .softmax import lanes_of

op: Any = relax.op

# Bytes of the expanded image below which it stays in the caches between two functions.
_LEAST_BYTES = 1 << 17
# Vector registers of a pixel, at most, and the most pixels of a tile: in a row of the expanded image and, of a first
# layer, whose loops are all unrolled; in a row and in a column of the result. A tile has at most 28 registers.
_REGISTERS, _EXPANDED, _FIRST, _COLUMNS, _ROWS = 2, 14, 7, 7, 2
# Elements of a depthwise filter, and factors of an element of the expanded image that are no product's row, up to which
# all loops over them are unrolled.
_UNROLLED, _MOST_FACTORS = 25, 64
# What may stand between the two convolutions.
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": topi.add, "divide": topi.divide, "maximum": topi.maximum, "minimum": topi.minimum,
    "multiply": topi.multiply, "subtract": topi.subtract, "nn.relu": topi.nn.relu,
    # As they are before and after `sigmoids`.
    "sigmoid": fast_sigmoid, FAST_SIGMOID: fast_sigmoid, "nn.silu": lambda x: topi.multiply(x, fast_sigmoid(x)),
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Window:
    """What a convolution reads for a pixel: rows, then columns.

    Attributes:
        padding: at the top, left, bottom and right.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]

    @classmethod
    def of_call(cls, call: Any) -> Window:
        """Return the window of a call of Relax's conv2d, whose weights are (rows, columns, ...)."""
        attrs = call.attrs
        strides, padding, dilation = (tuple(map(int, each)) for each in (attrs.strides, attrs.padding, attrs.dilation))
        return cls(static_shape(call.args[1])[:2], strides, padding, dilation)  # type: ignore[arg-type]

    def read(self, row: Any, column: Any, i: Any, j: Any) -> tuple[Any, Any]:
        """Return the row and column of an image that an element of the kernel reads, which may lie beside it."""
        (down, across), (below, beside), (top, left, _, _) = self.strides, self.dilation, self.padding
        return row * down + i * below - top, column * across + j * beside - left


_ONE_PIXEL = Window((1, 1), (1, 1), (0, 0, 0, 0), (1, 1))


@dataclass(frozen=True, order=True)
class DepthwiseShape:
    """A depthwise convolution of an image that another convolution gives, both in float32, channels last.

    Attributes:
        batch, height, width, channels: of the image between the two.
        extents: height and width of the result.
        inputs: channels of a pixel before the first convolution.
        first, second: what the convolutions read for a pixel.
    """

    batch: int
    height: int
    width: int
    channels: int
    extents: tuple[int, int]
    inputs: int
    first: Window
    second: Window


@dataclass(frozen=True)
class _Match:
    """The convolution before a depthwise one, and the elementwise operators between the two.

    Attributes:
        source: variable of the convolution's result, or of the matrix product's that a 1x1 convolution is.
        image: what that reads: rows of pixels or, with `order`, an image.
        order: positions of an image's batch, rows, columns and channels among its axes; None for rows of pixels.
        weight: (factors of an element, channels).
        between: variables and calls of the operators, in their order; the last one gives the image.
    """

    shape: DepthwiseShape
    source: Any
    image: Any
    order: tuple[int, ...] | None
    weight: Any
    between: tuple[tuple[Any, Any], ...]

    @property
    def vectors(self) -> list[Any]:
        """Return the constants of the operators between that have an element for each channel, in their order."""
        constants = [arg for _, call in self.between for arg in _args(call) if _is_constant(arg, self.shape.channels)]
        return [relax.const(np.ravel(constant_values(one))) for one in constants]  # pyright: ignore[reportCallIssue, reportArgumentType]


def fuse_depthwise(shapes: Collection[DepthwiseShape]) -> Any:
    """Return a pass that computes the depthwise convolutions of these shapes with the ones before them."""
    return function_pass("TchubFuseDepthwise", lambda mod, func: _Fuser(mod, func, shapes))


def depthwise_convolutions(mod: Any) -> set[DepthwiseShape]:
    """Return those of a Relax module, as `for_inference` gives it, that `fuse_depthwise` can compute."""
    functions = (func for func in mod.functions.values() if isinstance(func, relax.Function))
    return {one.shape for func in functions for one in _matches(func).values()}


@mutator
class _Fuser(PyExprMutator):
    def __init__(self, mod: Any, func: Any, shapes: Collection[DepthwiseShape]) -> None:
        super().__init__(mod)
        self.matches = {call: one for call, one in _matches(func).items() if one.shape in shapes}

    def visit_call_(self, call: Any) -> Any:
        if (one := self.matches.get(call)) is None:
            return super().visit_call_(call)
        x = self.visit_expr(one.image)
        if one.order is None and len(static_shape(x)) != 2:
            x = self.builder_.emit(op.reshape(x, (prod(static_shape(x)[:-1]), one.shape.inputs)))
        return self.builder_.call_te(
            partial(_depthwise, one), x, relax.const(one.weight), call.args[1], *one.vectors,
            primfunc_name_hint="expanded_depthwise", primfunc_attrs={"op_pattern": TAKES_ELEMENTWISE},
        )  # fmt: skip


# The match -----------------------------------------------------------------------------------------------


def depthwise_sources(func: Any) -> set[Any]:
    """Return the calls of a function, convolutions and products, that `fuse_depthwise` can take in."""
    bound = bound_values(func)
    return {bound[one.source] for one in _matches(func).values()}


def _matches(func: Any) -> dict[Any, _Match]:
    """Return what `fuse_depthwise` can compute of a function, by the call of the depthwise convolution."""
    bound, uses = bound_values(func), uses_of(func)
    calls = (value for value in bound.values() if isinstance(value, relax.Call) and operator_name(value) == "nn.conv2d")
    return {call: one for call in calls if (one := _match(call, bound, uses)) is not None}


def _match(call: Any, bound: dict[Any, Any], uses: Counter[Any]) -> _Match | None:
    image, weight = static_shape(call.args[0]), static_shape(call.args[1])
    if not _is_plain(call) or not image or weight[2:] != (1, image[-1]) or int(call.attrs.groups) != image[-1]:
        return None
    batch, height, width, channels = image
    if not lanes_of(channels) or 4 * height * width * channels < _LEAST_BYTES:
        return None
    if (before := _before(call.args[0], channels, bound, uses)) is None:
        return None
    source, between = before
    first = bound[source]
    read, values = first.args[0], constant_values(first.args[1])
    inputs = static_shape(read)[-1]
    window, order = _ONE_PIXEL, None
    if operator_name(first) == "nn.conv2d":
        window, order = Window.of_call(first), (0, 1, 2, 3)
        permuted: Any = bound.get(read)
        if _name(permuted) == "permute_dims" and [int(axis) for axis in permuted.attrs.axes or ()] == [0, 2, 3, 1]:
            read, order = permuted.args[0], (0, 2, 3, 1)  # an image of the network's, which nobody needs otherwise
    extents = static_shape(call)[1:3]
    shape = DepthwiseShape(batch, height, width, channels, extents, inputs, window, Window.of_call(call))  # type: ignore[arg-type]
    assert values is not None
    return _Match(shape, source, read, order, values.reshape(-1, channels), between)


def _is_plain(call: Any) -> bool:
    """Return whether a convolution is of float32, channels last, with constant weights."""
    known = constant_values(call.args[1]) is not None
    return is_channels_last(call) and known and str(call.ty.dtype) == "float32"


def _is_source(call: Any, channels: int) -> bool:
    """Return whether a call is a convolution, or a product, by which an image's channels are computed."""
    values = constant_values(call.args[1]) if len(call.args) == 2 else None
    if values is None or values.shape[-1] != channels or not static_shape(call.args[0]):
        return False
    if operator_name(call) == "matmul":
        return values.ndim == 2 and str(call.ty.dtype) == "float32"
    return _is_plain(call) and int(call.attrs.groups) == 1 and prod(values.shape[:-1]) <= _MOST_FACTORS


def _before(
    value: Any, channels: int, bound: dict[Any, Any], uses: Counter[Any]
) -> tuple[Any, tuple[tuple[Any, Any], ...]] | None:
    """Return the variable of the convolution or product that an image comes from, and the operators between."""
    call: Any
    while uses[value] == 1 and _name(call := bound.get(value)) == "reshape":
        value = call.args[0]
    sources, steps, used, waiting = set[Any](), set[Any](), Counter[Any]([value]), [value]
    while waiting:
        if (value := waiting.pop()) in sources or value in steps:
            continue
        call, shape = bound.get(value), static_shape(value)
        if _name(call) in ("matmul", "nn.conv2d") and _is_source(call, channels):
            sources.add(value)
            continue
        args = _args(call) if _name(call) in _ELEMENTWISE else []
        inputs = [arg for arg in args if isinstance(arg, relax.Var)]
        if not inputs or any(static_shape(arg) != shape for arg in inputs):
            return None
        if not all(isinstance(arg, relax.Var) or _is_constant(arg, 1) or _is_constant(arg, channels) for arg in args):
            return None
        steps.add(value)
        used.update(inputs)
        waiting += inputs
    if len(sources) != 1 or any(uses[var] != used[var] for var in sources | steps):
        return None
    return sources.pop(), tuple((var, call) for var, call in bound.items() if var in steps)


def _name(value: Any) -> str:
    """Return the name of an operator, or of one of tchub's functions without its number; empty for no call."""
    if not isinstance(value, relax.Call):
        return ""
    callee: Any = value.args[0] if operator_name(value) == "call_tir" else None
    return callee.name_hint.rstrip("0123456789") if callee is not None else operator_name(value)


def _args(call: Any) -> list[Any]:
    return list(call.args[1].fields if operator_name(call) == "call_tir" else call.args)


def _is_constant(value: Any, elements: int) -> bool:
    """Return whether a value is a constant of that many elements, all of them along its last axis."""
    values = constant_values(value)
    return values is not None and values.size == elements == (*values.shape, 1)[max(0, values.ndim - 1)]


# The function --------------------------------------------------------------------------------------------


def _depthwise(one: _Match, read: Any, weight: Any, filters: Any, *vectors: Any) -> Any:
    none = {"schedule_rule": "None"}  # the rule of the last block schedules them all
    shape = one.shape
    image: Any = extents_of(shape.batch, shape.height, shape.width, shape.channels)
    depth: Any = te.reduce_axis((0, weight.shape[0]), name="k")
    axes = zip(shape.second.kernel, "ij", strict=True)
    window: Any = [te.reduce_axis((0, IntImm("int64", extent)), name=name) for extent, name in axes]

    def factor(n: Any, h: Any, w: Any) -> Any:
        if one.order is None:
            return read((n * shape.height + h) * shape.width + w, depth)
        i, j = depth // (shape.first.kernel[1] * shape.inputs), depth // shape.inputs % shape.first.kernel[1]
        row, column = shape.first.read(h, w, i, j)
        _, *extents, _ = (read.shape[axis] for axis in one.order)
        index = dict(zip(one.order, (n, row, column, depth % shape.inputs), strict=True))
        return _inside(row, column, extents, read(*(index[axis] for axis in range(4))))

    def pixel(n: Any, h: Any, w: Any, c: Any) -> Any:
        row, column = h - top, w - left
        return _inside(row, column, image[1:3], expanded(n, row, column, c))

    def filtered(n: Any, h: Any, w: Any, c: Any) -> Any:
        i, j = window
        row, column = shape.second.read(h, w, i, j)
        return te.sum(padded(n, row + top, column + left, c) * filters(i, j, 0, c), axis=window)

    source: Any = te.compute(
        image, lambda n, h, w, c: te.sum(factor(n, h, w) * weight(depth, c), axis=depth), name="source", attrs=none
    )
    values = {one.source: source}
    remaining = iter(vectors)

    def argument(arg: Any) -> Any:
        if isinstance(arg, relax.Var):
            return values[arg]
        number: Any = constant_values(arg)
        return const(number.item(), "float32") if number.size == 1 else next(remaining)

    for var, call in one.between:
        values[var] = _ELEMENTWISE[_name(call)](*map(argument, _args(call)))
    last = values[one.between[-1][0] if one.between else one.source]
    top, left, bottom, right = shape.second.padding
    expanded: Any = te.compute(image, lambda *i: last[i], name="expanded", attrs=none)
    around = [image[0], image[1] + top + bottom, image[2] + left + right, image[3]]
    padded: Any = te.compute(around, pixel, name="padded", attrs=none)
    extents = [image[0], *extents_of(*shape.extents), image[3]]
    sums: Any = te.compute(extents, filtered, name="sums", attrs=none)
    rule = {"schedule_rule": "tchub.expanded_depthwise"}
    return te.compute(extents, lambda *i: sums[i], name="depthwise", attrs=rule)


def _inside(row: Any, column: Any, extents: Sequence[Any], value: Any) -> Any:
    """Return a pixel's value where it lies inside an image of these rows and columns, else 0."""
    height, width = extents
    return te.if_then_else(te.all(row >= 0, row < height, column >= 0, column < width), value, 0.0)


# The design space ----------------------------------------------------------------------------------------


def expanded_depthwise(schedule: Any, block: Any) -> list[Any]:
    """Return the space of the function and what elementwise follows it: channels and rows of a part, and two tiles.

    What follows with other axes or several results is left as it is, unscheduled.
    """
    (sums,) = schedule.get_producers(block)
    (padded,) = schedule.get_producers(sums)
    (expanded,) = schedule.get_producers(padded)
    source, *between = blocks_before(schedule, expanded)
    chain = followers(schedule, block)
    if not chain or any(len(schedule.get_loops(one)) != 4 for one in chain):
        return [schedule]
    *inlined, last = chain
    for one in (*between, padded, *inlined):
        schedule.compute_inline(one)

    images, rows, columns, channels = schedule.get_loops(last)
    lanes = lanes_of(int(schedule.get(channels).extent))
    registers, vector = schedule.split(channels, [None, lanes])
    outer, registers = schedule.split(registers, schedule.sample_perfect_tile(registers, 2, _REGISTERS))
    band, middle, row = schedule.split(rows, schedule.sample_perfect_tile(rows, 3, _ROWS))
    tiles, column = schedule.split(columns, schedule.sample_perfect_tile(columns, 2, _COLUMNS))
    schedule.reorder(images, outer, band, middle, tiles, row, column, registers, vector)
    part = schedule.fuse(images, outer, band)
    schedule.parallel(part)
    in_registers(schedule, row, column, registers, vector)

    schedule.compute_at(sums, tiles, preserve_unit_loops=True)
    *_, row, column, channel, i, j = schedule.get_loops(sums)
    tile = row, column, *schedule.split(channel, [None, lanes])
    schedule.reorder(i, j, *tile)
    window = [int(schedule.get(loop).extent) for loop in (i, j)]
    for loop in (i, j)[prod(window) > _UNROLLED :]:
        schedule.unroll(loop)
    in_registers(schedule, *tile)
    schedule.set_scope(sums, 0, "local")
    start = schedule.decompose_reduction(sums, i)
    in_registers(schedule, *schedule.get_loops(start)[-4:])

    # Where the loop over an image's rows, columns and colours is unrolled, what lies beside the image is known.
    is_first = any(len(read.region) > 2 for read in schedule.get(source).reads)
    schedule.compute_at(expanded, part, preserve_unit_loops=True)
    *_, column, channel = schedule.get_loops(expanded)
    tile = schedule.sample_perfect_tile(column, 2, _FIRST if is_first else _EXPANDED)
    outer, column = schedule.split(column, tile)
    in_registers(schedule, column, *schedule.split(channel, [None, lanes]))
    compute_in_registers(schedule, source, outer, lanes)
    if is_first:
        schedule.unroll(schedule.get_loops(source)[-4])
    schedule.annotate(schedule.get_sblock("root"), "schedule_rule", "None")
    return [schedule]
