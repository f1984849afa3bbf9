"""The x86 templates of TVM 0.8 to 0.13: what their schedules do with the knobs, in the order in which they do it."""

from __future__ import annotations

from collections.abc import Callable

from .autotvm_nest import Schedule
from .autotvm_problem import Conv, Matmul


def dense_nopack(schedule: Schedule, task: Matmul) -> None:
    """A vector of partial sums for each output, summed at the end."""
    y, x = schedule.tile("tile_y", task.m, 2), schedule.tile("tile_x", task.n, 2)
    k = schedule.tile("tile_k", task.k, 2)
    product = schedule.stage("T_matmul_NT", task.m, task.n, task.k)
    # The template writes the two reductions by hand; they are those of an rfactor.
    _, lanes = product.split(product.loops[2], k)
    partial = product.rfactor(lanes, 2, 2)
    rows, columns, lanes = product.loops
    yo, yi = product.split(rows, y)
    xo, xi = product.split(columns, x)
    product.reorder(yo, xo, yi, xi)
    outer = product.fuse(yo, xo)
    product.parallel(outer)
    product.unroll(lanes)
    partial.compute_at(product, outer, y[1], x[1])
    rows, columns, lanes, reduced = partial.loops
    fused = partial.fuse(rows, columns)
    partial.reorder(reduced, fused, lanes)
    partial.unroll(fused)
    partial.vectorize(lanes)


def dense_pack(schedule: Schedule, task: Matmul) -> None:
    """Weights packed beforehand by the innermost factor of `tile_x`, a tile of sums in a buffer of its own."""
    y, x = schedule.tile("tile_y", task.m, 3), schedule.tile("tile_x", task.n, 3)
    k = schedule.tile("tile_k", task.k, 2)
    product = schedule.stage("T_matmul_NT", task.m, task.n, task.k)
    output = product.cache_write("global", 2)
    rows, columns = output.loops
    yt, yo, yi = output.split(rows, y)
    xt, xo, xi = output.split(columns, x)
    output.reorder(xt, yt, yo, xo, yi, xi)
    output.parallel(output.fuse(xt, yt))
    tile = output.fuse(yo, xo)
    output.unroll(yi)
    output.vectorize(xi)
    product.compute_at(output, tile, y[2], x[2])
    rows, columns, reduced = product.loops
    ko, ki = product.split(reduced, k)
    product.reorder(ko, ki, rows, columns)
    product.vectorize(columns)
    inner = schedule.tile("tile_inner", task.m, 2)[1] if schedule.has("tile_inner") else 1
    if inner == 1:
        product.unroll(ki, rows)
        return
    outer, rows = product.split_inner(rows, inner)
    product.reorder(ko, outer, ki, rows, columns)
    product.unroll(outer, ki, rows)


def batch_matmul(schedule: Schedule, task: Matmul) -> None:
    """Tiles over all cores, and a vector of partial sums along the reduction."""
    y, x = schedule.tile("tile_y", task.m, 2), schedule.tile("tile_x", task.n, 2)
    k = schedule.tile("tile_k", task.k, 2)
    product = schedule.stage(f"T_batch_matmul_{task.weights}", task.batch, task.m, task.n, task.k)
    output = product.cache_write("global", 3)
    batch, rows, columns = output.loops
    yo, yi = output.split(rows, y)
    xo, xi = output.split(columns, x)
    output.reorder(batch, yo, xo, yi, xi)
    outer = output.fuse(batch, yo, xo)
    output.parallel(outer)
    product.compute_at(output, outer, 1, y[1], x[1])
    _, lanes = product.split(product.loops[3], k)
    partial = product.rfactor(lanes, 0, 3)
    partial.compute_at(product, product.loops[0], k[1], 1)
    lanes, _, rows, columns, _ = partial.loops
    partial.fuse(rows, columns)
    partial.vectorize(lanes)
    output.unroll_limit(outer, 16)


def conv2d_nchwc(schedule: Schedule, conv: Conv) -> None:
    """Direct convolution on data blocked by channels; a kernel of 1 x 1 has tiles of rows too."""
    _pad(schedule, "data_pad", conv, schedule.tile("tile_ic", conv.c, 2)[1])
    if schedule.has("tile_oh"):
        _conv_1x1(schedule, conv)
    else:
        _conv_common(schedule, conv)


def _conv_1x1(schedule: Schedule, conv: Conv) -> None:
    oc, ic = schedule.tile("tile_oc", conv.k, 2), schedule.tile("tile_ic", conv.c, 2)
    height, width = schedule.choice("tile_oh"), schedule.tile("tile_ow", conv.out[1], 2, exact=False)[1]
    product = schedule.stage("conv2d_NCHWc", conv.n, oc[0], *conv.out, oc[1], conv.c, *conv.kernel)
    output = product.cache_write("global", 5)
    n, k, rows, columns, lanes = output.loops
    rows, hi = output.split_inner(rows, height)
    columns, wi = output.split_inner(columns, width)
    output.reorder(k, rows, columns, hi, wi, lanes)
    output.vectorize(lanes)
    outer = output.fuse(n, k, rows)
    product.compute_at(output, outer, 1, 1, height)
    output.parallel(outer)
    _, k, rows, columns, lanes, c, _, _ = product.loops
    co, ci = product.split(c, ic)
    rows, hi = product.split_inner(rows, height)
    columns, wi = product.split_inner(columns, width)
    product.reorder(k, rows, columns, co, ci, hi, wi, lanes)
    product.fuse(k, rows)
    product.vectorize(lanes)
    product.unroll(wi, hi)


def _conv_common(schedule: Schedule, conv: Conv) -> None:
    oc, ic = schedule.tile("tile_oc", conv.k, 2), schedule.tile("tile_ic", conv.c, 2)
    width, unrolled = schedule.tile("tile_ow", conv.out[1], 2, exact=False)[1], schedule.choice("unroll_kw")
    product = schedule.stage("conv2d_NCHWc", conv.n, oc[0], *conv.out, oc[1], conv.c, *conv.kernel)
    output = product.cache_write("global", 5)
    n, k, rows, columns, lanes = output.loops
    columns, wi = output.split_inner(columns, width)
    output.reorder(k, rows, columns, wi, lanes)
    outer = output.fuse(n, k, rows)
    output.vectorize(lanes)
    output.parallel(outer)
    product.compute_at(output, columns, 1, 1, 1, width)
    _, k, rows, columns, lanes, c, kh, kw = product.loops
    columns, wi = product.split_inner(columns, width)
    co, ci = product.split(c, ic)
    product.reorder(k, rows, columns, co, kh, *((ci, kw) if unrolled else (kw, ci)), wi, lanes)
    if unrolled:
        product.unroll(kw)
    product.vectorize(lanes)
    product.unroll(wi)


def depthwise_conv2d_nchwc(schedule: Schedule, conv: Conv) -> None:
    """Depthwise convolution on data blocked by channels."""
    oc, ic = schedule.tile("tile_oc", conv.k, 2), schedule.tile("tile_ic", conv.c, 2)
    width, unrolled = schedule.tile("tile_ow", conv.out[1], 2, exact=False)[1], schedule.choice("unroll_kw")
    _pad(schedule, "PaddedInput", conv, ic[1])
    product = schedule.stage("DepthwiseConv2d", conv.n, oc[0], *conv.out, oc[1], *conv.kernel)
    output = product.cache_write("global", 5)
    _, k, rows, columns, lanes = output.loops
    columns, wi = output.split_inner(columns, width)
    output.reorder(k, rows, columns, wi, lanes)
    output.vectorize(lanes)
    output.parallel(output.fuse(k, rows))
    product.compute_at(output, columns, 1, 1, 1, width)
    _, k, rows, columns, lanes, kh, kw = product.loops
    product.reorder(k, rows, kh, kw, columns, lanes)
    if unrolled:
        product.unroll(kw)
    product.vectorize(lanes)
    product.unroll(columns)


def _pad(schedule: Schedule, name: str, conv: Conv, lanes: int) -> None:
    """The padded data, where there is padding, are made first, over all cores, a block of channels a vector."""
    if any(conv.padding):
        pad = schedule.stage(name, conv.n, conv.c // lanes, *conv.padded, lanes)
        pad.vectorize(pad.loops[-1])
        pad.parallel(pad.fuse(*pad.loops[:3]))


CONVS: dict[str, Callable[[Schedule, Conv], None]] = {
    "conv2d_NCHWc.x86": conv2d_nchwc,
    "depthwise_conv2d_NCHWc.x86": depthwise_conv2d_nchwc,
}
MATMULS: dict[str, Callable[[Schedule, Matmul], None]] = {
    "batch_matmul.x86": batch_matmul,
    "dense_nopack.x86": dense_nopack,
    "dense_pack.x86": dense_pack,
}
