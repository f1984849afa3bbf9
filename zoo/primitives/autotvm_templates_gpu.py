"""The CUDA templates of TVM 0.8 to 0.13: what their schedules do with the knobs, in the order in which they do it.

The output of a convolution departs from that in two ways that change no loop, as MetaSchedule tells its kernels: the
images are a tile like the other axes, and there is no loop of one iteration around the kernel to hang the unroll
limit on (it would read like a tile); the limit is the first loop's.
"""

from collections.abc import Callable, Sequence
from math import prod

from .autotvm_nest import Loop, Schedule, Stage
from .problem import Conv, Matmul

_BLOCKS, _VTHREADS = "blockIdx.z blockIdx.y blockIdx.x", "vthread.z vthread.y vthread.x"
_THREADS = "threadIdx.z threadIdx.y threadIdx.x"

Tile = tuple[int, ...]
"""Factors of one spatial axis: blocks, virtual threads, threads, inner."""


def conv2d_nchw(schedule: Schedule, conv: Conv) -> None:
    """Direct convolution: tiles in shared memory for every step of the reduction, sums in registers."""
    tiles = f, y, x = _spatial(schedule, ("tile_f", "tile_y", "tile_x"), (conv.k, *conv.out))
    schedule.stage("pad_temp").inline()
    local = schedule.stage("conv2d_nchw", conv.n, conv.k, *conv.out, conv.c, *conv.kernel)
    output = local.cache_write("local", 4)
    reduction = [
        schedule.tile(name, extent, 2)
        for name, extent in zip(("tile_rc", "tile_ry", "tile_rx"), (conv.c, *conv.kernel), strict=True)
    ]
    channels, *taps = (inner for _, inner in reduction)
    rows, columns = conv.reads(prod(y[1:]), prod(x[1:]), taps)
    data = local.cache_read(0, "shared", 1, channels, rows, columns)
    weights = local.cache_read(1, "shared", prod(f[1:]), channels, *taps)

    thread = _grid(output, tiles)
    local.compute_at(output, thread, 1, f[3], y[3], x[3])
    spatial, reduced = local.loops[:4], local.loops[4:]
    outer, inner = zip(*(local.split(loop, tile) for loop, tile in zip(reduced, reduction, strict=True)), strict=True)
    local.reorder(*outer, *inner, *spatial)
    for load in (data, weights):
        load.compute_at(local, outer[-1])
    for load in (data, weights):
        _fetch(load, [tile[2] for tile in tiles], neighbours=False)
    _unroll(schedule, output, output.loops[0])


def depthwise_conv2d_nchw(schedule: Schedule, conv: Conv) -> None:
    """Depthwise convolution: the block's data and filters in shared memory, the thread's in registers."""
    tiles = f, y, x = _spatial(schedule, ("tile_f", "tile_y", "tile_x"), (conv.k, *conv.out))
    schedule.stage("pad_temp").inline()
    local = schedule.stage("DepthwiseConv2d", conv.n, conv.k, *conv.out, *conv.kernel)
    output = local.cache_write("local", 4)
    filters = conv.k // conv.c  # for one channel
    data, weights, own_data, own_weights = (
        local.cache_read(buffer, memory, *shape)
        for memory, (k, h, w) in (("shared", [prod(tile[1:]) for tile in tiles]), ("local", [f[3], y[3], x[3]]))
        for buffer, shape in enumerate(
            [(1, -(-k // filters), *conv.reads(h, w, conv.kernel)), (-(-k // filters), min(k, filters), *conv.kernel)]
        )
    )

    thread = _grid(output, tiles)
    local.compute_at(output, thread, 1, f[3], y[3], x[3])
    block = output.loops[2]
    for load, loop in ((data, block), (weights, block), (own_data, thread), (own_weights, thread)):
        load.compute_at(output, loop)
    for load in (data, weights):
        _fetch(load, [tile[2] for tile in tiles], neighbours=True)
    _unroll(schedule, output, output.loops[0])


def conv2d_nchw_winograd(schedule: Schedule, conv: Conv) -> None:
    """Winograd convolution, its kernel transformed beforehand: data transform, products, inverse transform."""
    tile = 4 if conv.h % 8 == 0 else 2
    side = tile + conv.kernel[0] - 1
    rows, columns = (-(-size // tile) for size in conv.out)
    patches = conv.n * rows * columns
    _transform_data(schedule, side, conv.c, patches)
    product = schedule.stage("bgemm", side, side, conv.k, patches, conv.c)
    _winograd_products(schedule, product, conv, side * side, patches)

    output = schedule.stage("output", conv.n, conv.k, *conv.out)
    n, k, h, w = output.loops
    (h, hi), (w, wi) = output.split_inner(h, tile), output.split_inner(w, tile)
    output.reorder(h, w, hi, wi)
    block, thread = output.split_inner(output.fuse(n, k, h, w), 128)
    output.bind("blockIdx.x threadIdx.x", block, thread)
    schedule.stage("A").inline()
    inverse = schedule.stage("inverse", conv.k, patches, tile, tile, side, side)
    inverse.unroll(*inverse.loops[2:])
    inverse.compute_at(output, thread, 1, 1)


def dense_small_batch(schedule: Schedule, task: Matmul) -> None:
    """One block an output, whose threads share the reduction."""
    factors = schedule.tile("tile_k", task.k, 2)
    product = schedule.stage("T_matmul_NT", task.m, task.n, task.k)
    _, inner = product.split(product.loops[2], factors)
    partial = product.rfactor(inner, 0, 2)
    rows, columns, thread = product.loops
    product.bind("blockIdx.y blockIdx.x threadIdx.x", rows, columns, thread)
    partial.compute_at(product, thread, 1, 1, 1)


def dense_large_batch(schedule: Schedule, task: Matmul) -> None:
    """Tile in shared memory, then in registers; both operands are fetched ahead into double buffers."""
    x, y = schedule.tile("tile_x", task.m, 4), schedule.tile("tile_y", task.n, 4)
    k = schedule.tile("tile_k", task.k, 3)
    local = schedule.stage(f"T_matmul_{task.weights}", task.m, task.n, task.k)
    wide, deep = prod(y[1:]), k[1] * k[2]
    data = local.cache_read(0, "shared", prod(x[1:]), deep)
    weights = local.cache_read(1, "shared", *_stored(task, wide, deep))
    own_data = local.cache_read(0, "local", x[3], k[2])
    own_weights = local.cache_read(1, "local", *_stored(task, y[3], k[2]))
    output = local.cache_write("local", 2)

    rows, columns = output.loops
    bx, vx, tx, xi = output.split(rows, x)
    by, vy, ty, yi = output.split(columns, y)
    output.reorder(by, bx, vy, vx, ty, tx, yi, xi)
    local.compute_at(output, tx, x[3], y[3])
    output.bind("blockIdx.y blockIdx.x vthread.y vthread.x threadIdx.y threadIdx.x", by, bx, vy, vx, ty, tx)
    rows, columns, reduced = local.loops
    ko, kt, ki = local.split(reduced, k)
    local.reorder(ko, kt, ki, rows, columns)
    for load in (data, weights):
        load.compute_at(local, ko)
    local.unroll(kt)
    for load in (own_data, own_weights):
        load.compute_at(local, kt)
    _fetch_ahead(data, x[2])
    _fetch_ahead(weights, y[2])


def batch_matmul(schedule: Schedule, task: Matmul) -> None:
    """A batch of products, one block row an entry; tiles in shared memory, then in registers."""
    y, x = schedule.tile("tile_y", task.m, 3), schedule.tile("tile_x", task.n, 3)
    k = schedule.tile("tile_k", task.k, 2)
    local = schedule.stage(f"T_batch_matmul_{task.weights}", task.batch, task.m, task.n, task.k)
    data = local.cache_read(0, "shared", 1, y[1] * y[2], k[1])
    own_data = local.cache_read(0, "local", 1, y[2], 1)
    weights = local.cache_read(1, "shared", 1, *_stored(task, x[1] * x[2], k[1]))
    own_weights = local.cache_read(1, "local", 1, *_stored(task, x[2], 1))
    output = local.cache_write("local", 3)

    batch, rows, columns = output.loops
    by, ty, yi = output.split(rows, y)
    bx, tx, xi = output.split(columns, x)
    output.reorder(batch, by, bx, ty, tx, yi, xi)
    output.bind(f"{_BLOCKS} threadIdx.y threadIdx.x", batch, by, bx, ty, tx)
    _unroll(schedule, output, yi)
    local.compute_at(output, tx, 1, y[2], x[2])
    _, rows, columns, reduced = local.loops
    ko, ki = local.split(reduced, k)
    local.reorder(ko, ki, rows, columns)
    _unroll(schedule, local, ki)
    for shared, own in ((data, own_data), (weights, own_weights)):
        shared.compute_at(local, ko)
        own.compute_at(local, ki)
    for load, in_place in ((data, False), (weights, True)):
        _unroll(schedule, load, _fetch_tiled(load, y[1], x[1], in_place))


def _transform_data(schedule: Schedule, side: int, channels: int, patches: int) -> None:
    """The data's patches into the Winograd domain, one patch of one channel a thread."""
    schedule.stage("B").inline()
    local = schedule.stage("data_pack", side, side, channels, patches, side, side)
    output = local.cache_write("local", 4)
    eps, nu, _, _, r_eps, r_nu = local.loops
    local.unroll(eps, nu, r_eps, r_nu)
    eps, nu, c, p = output.loops
    p, pi = output.split_inner(p, 1)
    block, thread = output.split_inner(output.fuse(c, p), 128)
    output.reorder(block, thread, pi, eps, nu)
    output.bind("blockIdx.x threadIdx.x", block, thread)
    local.compute_at(output, pi, side, side, 1, 1)
    schedule.stage("d", channels, patches, side, side).compute_at(output, pi, 1, 1)
    schedule.stage("pad_temp").inline()


def _winograd_products(schedule: Schedule, local: Stage, conv: Conv, batch: int, patches: int) -> None:
    """A matrix product for each point of the Winograd domain, tiled like a direct convolution."""
    tiles = b, y, x = _spatial(schedule, ("tile_b", "tile_y", "tile_x"), (batch, conv.k, patches))
    reduction = schedule.tile("tile_rc", conv.c, 2)
    output = local.cache_write("local", 4)
    points = 1, prod(b[1:])
    loads = [local.cache_read(i, "shared", *points, reduction[1], prod(tile[1:])) for i, tile in enumerate((y, x))]
    eps, nu, rows, columns = output.loops
    thread = _tile(output, [output.fuse(eps, nu), rows, columns], tiles)
    local.compute_at(output, thread, 1, b[3], y[3], x[3])
    eps, nu, rows, columns, reduced = local.loops
    fused = local.fuse(eps, nu)
    outer, inner = local.split(reduced, reduction)
    local.reorder(outer, inner, fused, rows, columns)
    for load in loads:
        load.compute_at(local, outer)
    for load in loads:
        _fetch(load, [tile[2] for tile in tiles], neighbours=True)
    _unroll(schedule, output, output.loops[0])


def _spatial(schedule: Schedule, names: Sequence[str], extents: Sequence[int]) -> list[Tile]:
    return [schedule.tile(name, extent, 4) for name, extent in zip(names, extents, strict=True)]


def _grid(output: Stage, tiles: Sequence[Tile]) -> Loop:
    """Spread (n, channel, row, column) over blocks and threads; gives the innermost thread's loop."""
    images, *axes = output.loops
    return _tile(output, axes, tiles, output.split(images, (images.extent, 1, 1, 1)))


def _tile(output: Stage, axes: Sequence[Loop], tiles: Sequence[Tile], images: Sequence[Loop] = ()) -> Loop:
    """Tile three axes into blocks, virtual threads, threads and the rest; gives the innermost thread's loop.

    The images, where there are any, are all in blocks: they share a block axis with the first axis.
    """
    levels = list(zip(*(output.split(axis, tile) for axis, tile in zip(axes, tiles, strict=True)), strict=True))
    blocks, virtual, threads, inner = map(list, levels)
    output.reorder(*images[:1], *blocks, *virtual, *threads, *images[1:], *inner)
    if images:
        blocks[0] = output.fuse(images[0], blocks[0])
    output.bind(f"{_BLOCKS} {_VTHREADS} {_THREADS}", *blocks, *virtual, *threads)
    return threads[-1]


def _fetch(load: Stage, threads: Sequence[int], neighbours: bool) -> None:
    """Bind threads to a fetch: they take neighbouring elements (`neighbours`) or runs of elements."""
    bound: list[Loop] = []
    rest = load.fuse(*load.loops)
    for count in reversed(threads) if neighbours else threads:
        if neighbours:
            rest, loop = load.split_inner(rest, count)
            bound.insert(0, loop)
        else:
            loop, rest = load.split_outer(rest, count)
            bound.append(loop)
    load.bind(_THREADS, *bound)


def _fetch_ahead(load: Stage, threads: int) -> None:
    """A square of threads takes rows and runs of four; the next tile is fetched while this one is used."""
    first, second = load.loops
    ty, _ = load.split_outer(first, threads)
    _, inner = load.split_inner(second, threads * 4)
    tx, _ = load.split_outer(inner, threads)
    load.bind("threadIdx.y threadIdx.x", ty, tx)
    load.double_buffer()


def _fetch_tiled(load: Stage, rows: int, columns: int, in_place: bool) -> Loop:
    """Each thread takes a tile of what is fetched; gives the loop over the tile's rows.

    Loops are bound where they stand, or after they were ordered: the template does one here and the other there.
    """
    _, first, second = load.loops
    ty, inner = load.split_outer(first, rows)
    tx, innermost = load.split_outer(second, columns)
    if in_place:
        load.bind("threadIdx.y threadIdx.x", ty, tx)
    load.reorder(ty, tx, inner, innermost)
    if not in_place:
        load.bind("threadIdx.y threadIdx.x", ty, tx)
    return inner


def _stored(task: Matmul, columns: int, depth: int) -> tuple[int, int]:
    """A tile of the second operand, in the order in which it is stored."""
    return (columns, depth) if task.weights[1] == "T" else (depth, columns)


def _unroll(schedule: Schedule, stage: Stage, loop: Loop) -> None:
    stage.unroll_limit(loop, schedule.choice("auto_unroll_max_step"), schedule.choice("unroll_explicit"))


TEMPLATES: dict[str, Callable[..., None]] = {
    "conv2d_nchw.cuda": conv2d_nchw,
    "conv2d_nchw_winograd.cuda": conv2d_nchw_winograd,
    "depthwise_conv2d_nchw.cuda": depthwise_conv2d_nchw,
    "batch_matmul.cuda": batch_matmul,
    "dense_large_batch.cuda": dense_large_batch,
    "dense_large_batch.gpu": dense_large_batch,
    "dense_small_batch.cuda": dense_small_batch,
    "dense_small_batch.gpu": dense_small_batch,
}
