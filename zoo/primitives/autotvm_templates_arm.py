"""The ARM templates of TVM 0.8 to 0.13: what their schedules do with the knobs, in the order in which they do it."""

from __future__ import annotations

from collections.abc import Callable

from .autotvm_nest import Schedule
from .problem import Conv


def conv2d_nchw_spatial_pack(schedule: Schedule, conv: Conv) -> None:
    """Direct convolution on data packed by tiles of rows and columns, filters by tiles of channels."""
    co, oh = schedule.tile("tile_co", conv.k, 2), schedule.tile("tile_oh", conv.out[0], 2)
    ow = schedule.tile("tile_ow", conv.out[1], 2)
    schedule.stage("data_pad").inline()
    product = schedule.stage("conv", conv.n, conv.k, *conv.out, conv.c, *conv.kernel)
    data = product.cache_read(0, "global", *_packed(conv, oh, ow))
    output = product.cache_write("global", 4)
    n, k, rows, columns, c, kh, kw = product.loops
    # The template tiles the computation itself; as loops these are splits.
    (k, vc), (rows, vh), (columns, vw) = (
        product.split(k, co),
        product.split(rows, oh),
        product.split(columns, ow),
    )
    order = [n, k, rows, columns, c, kh, kw, vh, vw, vc]
    product.reorder(*(order[i] for i in schedule.order("reorder_0", len(order))))
    product.annotate(schedule.annotations("ann_reduce", 2), kh, kw)
    product.annotate(schedule.annotations("ann_spatial", 3), vh, vw, vc)

    n, k, rows, columns = output.loops
    (k, vc), (rows, vh), (columns, vw) = output.split(k, co), output.split(rows, oh), output.split(columns, ow)
    output.reorder(n, k, rows, columns, vh, vw, vc)
    product.compute_at(output, columns, 1, 1, 1, 1)
    output.parallel(k)
    data.parallel(data.loops[1])


def conv2d_nchw_winograd(schedule: Schedule, conv: Conv) -> None:
    """Winograd convolution with tiles of 4 x 4, its kernel transformed beforehand."""
    tile, side = 4, 4 + conv.kernel[0] - 1
    height, width = (-(-size // tile) for size in conv.out)
    patches = conv.n * height * width
    p, k = schedule.tile("tile_p", patches, 2), schedule.tile("tile_k", conv.k, 2)
    c = schedule.tile("tile_c", conv.c, 2)
    for name in ("data_pad", "d"):
        schedule.stage(name).inline()
    _transform_data(schedule, side, conv.c, p)

    product = schedule.stage("M", side, side, conv.k, patches, conv.c)
    eps, nu, rows, columns, reduced = product.loops
    co, ci = product.split(reduced, c)
    po, pi = product.split(columns, p)
    product.reorder(eps, nu, po, co, rows, ci, pi)
    product.annotate(schedule.annotations("ann_reduce", 1), ci)
    product.annotate(schedule.annotations("ann_spatial", 2), rows, pi)

    schedule.stage("A").inline()
    inverse = schedule.stage("Y", conv.k, patches, tile, tile, side, side)
    inverse.unroll(*inverse.loops[2:])
    output = schedule.stage("output", conv.n, conv.k, *conv.out)
    n, channels, h, w = output.loops
    channels, _ = output.split(channels, k)
    outer = output.fuse(n, channels)
    rows.extent = k[1]
    product.compute_at(output, outer)
    output.parallel(outer)
    copy = inverse.cache_read(0, "global", side, side, 1, 1)
    (h, hi), (w, wi) = output.split_inner(h, tile), output.split_inner(w, tile)
    output.reorder(h, w, hi, wi)
    inverse.compute_at(output, w, 1, 1)
    copy.compute_at(output, w)


def depthwise_conv2d_nchw(schedule: Schedule, conv: Conv) -> None:
    """Depthwise convolution on data and filters that are copied into blocks of channels first."""
    c = schedule.tile("tile_c", conv.k, 2)
    h, w = schedule.tile("tile_h", conv.out[0], 2), schedule.tile("tile_w", conv.out[1], 2)
    schedule.stage("pad_temp").inline()
    product = schedule.stage("DepthwiseConv2d", conv.n, conv.k, *conv.out, *conv.kernel)
    data = product.cache_read(0, "global", conv.n, conv.c, *conv.padded)
    weights = product.cache_read(1, "global", conv.c, conv.k // conv.c, *conv.kernel)
    for copy, at in ((data, 1), (weights, 0)):
        channels, lanes = copy.split_inner(copy.loops[at], c[1])
        copy.reorder(channels, *copy.loops[at + 2 :], lanes)
    output = product.cache_write("global", 4)
    _, channels, rows, columns, kh, kw = product.loops
    channels, lanes = product.split(channels, c)
    rows, hi = product.split(rows, h)
    columns, wi = product.split(columns, w)
    product.reorder(channels, rows, columns, kh, kw, hi, wi, lanes)
    data.compute_at(product, rows, 1, 1, *conv.reads(h[1], conv.out[1], conv.kernel))
    product.annotate(schedule.annotations("ann", 3), hi, wi, lanes)
    output.parallel(output.loops[1])
    product.parallel(channels)
    weights.parallel(weights.loops[0])


def _packed(conv: Conv, oh: tuple[int, ...], ow: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the data packed by tiles: image, tile row, tile column, channel, and what the tile reads.

    With dilation the tile holds one copy for each tap of the kernel.
    """
    inner = conv.reads(oh[1], ow[1], conv.kernel) if conv.dilation == (1, 1) else (*conv.kernel, oh[1], ow[1])
    return conv.n, oh[0], ow[0], conv.c, *inner


def _transform_data(schedule: Schedule, side: int, channels: int, patches: tuple[int, ...]) -> None:
    """The data's patches into the Winograd domain, as many at a time as `tile_p` says."""
    transform = schedule.stage("V", side, side, patches[0], channels, patches[1], side, side)
    copy = transform.cache_read(0, "global", 1, 1, side, side, patches[1])
    schedule.stage("B").inline()
    eps, nu, outer, c, lanes, r_eps, r_nu = transform.loops
    transform.reorder(outer, c, eps, nu, r_eps, r_nu, lanes)
    transform.unroll(eps, nu, r_eps, r_nu)
    copy.compute_at(transform, c)
    transform.vectorize(lanes)
    transform.parallel(outer)


TEMPLATES: dict[str, Callable[..., None]] = {
    "conv2d_nchw_spatial_pack.arm_cpu": conv2d_nchw_spatial_pack,
    "conv2d_nchw_winograd.arm_cpu": conv2d_nchw_winograd,
    "depthwise_conv2d_nchw.arm_cpu": depthwise_conv2d_nchw,
}
