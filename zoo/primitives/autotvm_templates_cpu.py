"""The templates of TVM 0.8 to 0.13 for CPUs: what their schedules do with the knobs.

Steps of ARM's are in the order of the schedules. Those of x86 are told as MetaSchedule tells its own CPU programs, so
that a tile means the same wherever it came from: four levels of the output with two of the reduction between them
(SSRSRS), a level that a template lacks being 1, and a convolution's output copied under the product's loops rather than
the product computed under the output's. Channels that the layout blocks are one axis, a block its innermost factor.
"""

from collections.abc import Callable, Sequence

from .autotvm_nest import Loop, Schedule, Stage
from .problem import Conv, Matmul


def dense_nopack(schedule: Schedule, task: Matmul) -> None:
    """A vector of partial sums for each output, summed at the end."""
    y, x = schedule.tile("tile_y", task.m, 2), schedule.tile("tile_x", task.n, 2)
    k = schedule.tile("tile_k", task.k, 2)
    product = schedule.stage("T_matmul_NT", task.m, task.n, task.k)
    # The template writes the two reductions by hand; they are those of an rfactor.
    _, lanes = product.split(product.loops[2], k)
    partial = product.rfactor(lanes, 2, 2)
    rows, columns, lanes = product.loops
    outer = product.fuse(*_tile(product, [rows, columns], [(y[0], 1, y[1], 1), (x[0], 1, x[1], 1)])[0])
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
    """Tile over all cores, and a vector of partial sums along the reduction."""
    y, x = schedule.tile("tile_y", task.m, 2), schedule.tile("tile_x", task.n, 2)
    k = schedule.tile("tile_k", task.k, 2)
    product = schedule.stage(f"T_batch_matmul_{task.weights}", task.batch, task.m, task.n, task.k)
    output = product.cache_write("global", 3)
    batch = task.batch, 1, 1, 1
    outer = output.fuse(*_tile(output, output.loops, [batch, (y[0], 1, y[1], 1), (x[0], 1, x[1], 1)])[0])
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
    k, c = schedule.tile("tile_oc", conv.k, 2), schedule.tile("tile_ic", conv.c, 2)
    width = schedule.tile("tile_ow", conv.out[1], 2, exact=False)[1]
    pointwise = schedule.has("tile_oh")
    height = schedule.choice("tile_oh") if pointwise else 1
    unrolled = not pointwise and schedule.choice("unroll_kw")
    _pad(schedule, "data_pad", conv, c[1])
    product = schedule.stage("conv2d_NCHWc", conv.n, conv.k, *conv.out, conv.c, *conv.kernel)
    output = product.cache_write("global", 4)
    taps = (conv.kernel[0], 1), ((1, conv.kernel[1]) if unrolled else (conv.kernel[1], 1))
    blocks, tiles, _, _, (_, _, kw), inner = _tile_channels(product, _blocked(conv, k, height, width), [c, *taps])
    # A pointwise kernel's rows are copied whole, the others' a tile at a time.
    loop, copied = (blocks[-1], ()) if pointwise else (tiles[-1], (width,))
    output.compute_at(product, loop, 1, k[1], height, *copied, kind="ReverseComputeAt")
    _copy_channels(output)
    product.parallel(product.fuse(*blocks[:3]))
    if unrolled:
        product.unroll(kw)
    _, lanes, hi, wi = inner
    product.vectorize(lanes)
    product.unroll(wi, *([hi] if pointwise else []))


def depthwise_conv2d_nchwc(schedule: Schedule, conv: Conv) -> None:
    """Depthwise convolution on data blocked by channels."""
    k, c = schedule.tile("tile_oc", conv.k, 2), schedule.tile("tile_ic", conv.c, 2)
    width, unrolled = schedule.tile("tile_ow", conv.out[1], 2, exact=False)[1], schedule.choice("unroll_kw")
    _pad(schedule, "PaddedInput", conv, c[1])
    product = schedule.stage("DepthwiseConv2d", conv.n, conv.k, *conv.out, *conv.kernel)
    output = product.cache_write("global", 4)
    taps = [(size, 1) for size in conv.kernel]
    blocks, tiles, (_, kw), _, _, inner = _tile_channels(product, _blocked(conv, k, 1, width), taps)
    output.compute_at(product, tiles[-1], 1, k[1], 1, width, kind="ReverseComputeAt")
    _copy_channels(output)
    product.parallel(product.fuse(*blocks[1:3]))
    if unrolled:
        product.unroll(kw)
    product.vectorize(inner[1])
    product.unroll(inner[3])


def _blocked(conv: Conv, k: tuple[int, ...], height: int, width: int) -> list[tuple[int, ...]]:
    """Tile of images, channels, rows and columns; a thread goes round the columns."""
    rows, columns = -(-conv.out[0] // height), -(-conv.out[1] // width)
    return [(conv.n, 1, 1, 1), (k[0], 1, 1, k[1]), (rows, 1, 1, height), (1, columns, 1, width)]


def _tile_channels(
    block: Stage, spatial: Sequence[Sequence[int]], reduction: Sequence[Sequence[int]]
) -> list[list[Loop]]:
    """As `_tile`, of all loops, with a block of channels, which is contiguous, innermost."""
    levels = _tile(block, block.loops, spatial, reduction)
    n, lanes, *others = levels[-1]
    block.reorder(n, *others, lanes)
    return levels


def _copy_channels(output: Stage) -> None:
    """The copy's loops, blocks of channels as vectors."""
    n, lanes, *others = output.loops
    output.reorder(n, *others, lanes)
    output.vectorize(lanes)


def _tile(
    block: Stage, loops: Sequence[Loop], spatial: Sequence[Sequence[int]], reduction: Sequence[Sequence[int]] = ()
) -> list[list[Loop]]:
    """Split loops, the spatial ones first, into the levels SSRSRS; gives the loops of each level."""
    parts = [block.split(loop, tile) for loop, tile in zip(list(loops), (*spatial, *reduction), strict=True)]
    s = [[part[level] for part in parts[: len(spatial)]] for level in range(4)]
    r = [[part[level] for part in parts[len(spatial) :]] for level in range(2)]
    levels = [s[0], s[1], r[0], s[2], r[1], s[3]]
    block.reorder(*(loop for level in levels for loop in level))
    return levels


def _pad(schedule: Schedule, name: str, conv: Conv, lanes: int) -> None:
    """The padded data, where there is padding, are made first, over all cores, a block of channels a vector."""
    if any(conv.padding):
        pad = schedule.stage(name, conv.n, conv.c // lanes, *conv.padded, lanes)
        pad.vectorize(pad.loops[-1])
        pad.parallel(pad.fuse(*pad.loops[:3]))


# ARM


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
    (k, vc), (rows, vh), (columns, vw) = product.split(k, co), product.split(rows, oh), product.split(columns, ow)
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
    "conv2d_NCHWc.x86": conv2d_nchwc,
    "depthwise_conv2d_NCHWc.x86": depthwise_conv2d_nchwc,
    "batch_matmul.x86": batch_matmul,
    "dense_nopack.x86": dense_nopack,
    "dense_pack.x86": dense_pack,
    "conv2d_nchw_spatial_pack.arm_cpu": conv2d_nchw_spatial_pack,
    "conv2d_nchw_winograd.arm_cpu": conv2d_nchw_winograd,
    "depthwise_conv2d_nchw.arm_cpu": depthwise_conv2d_nchw,
}
