"""The roofline of the device that programs run on: its peak FLOP/s in float32, and how fast it reads data and weights.

Both are measured as any program is, by the same workers: on this machine or on an RPC server. It takes two seconds.
"""

from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any, Self

import tvm
from tvm import te
from tvm.s_tir import Schedule

from ...zoo.corpus.tir import product_flops
from ..networks.tasks import TuningTask, argument_bytes, constant_bytes
from ..networks.transform.tile_products import gain_of_tiles
from .candidates import untuned_candidate
from .measuring import Measure

# Accumulators of a kernel: 6 x 16 floats fill the registers of AVX2 and of NEON; 6 x 32 and 7 x 64 those of AVX-512, of
# which a CPU with two such units needs the more, since each sum waits for the one before it.
_TILES = ((6, 16), (6, 32), (7, 64))
# Its operands stay in the first-level cache.
_DEPTH, _REPEATS = 128, 256
# Other load slows a kernel down, for a second maybe, and nothing speeds it up: the fastest repeat of all passes counts.
_PASSES = 2
# Floats of weights that a core adds up, each time others where those of a network are not in its caches.
_WEIGHTS = 1 << 16
# Floats that a core copies: 128 KiB and as many of the copy, which is within every CPU's second-level cache.
_COPIED = 1 << 15


@dataclass(frozen=True)
class Roofline:
    """The rates of a machine that no program exceeds.

    Attributes:
        flops: floating-point operations a second, of all cores that a program takes.
        bandwidth: bytes a second between cores and their second-level caches.
        weights: bytes of weights a second, from where a network's weights are when their turn comes: its memory, if
            they are more than a cache holds; see `TimingConfig.weights`.
    """

    flops: float
    bandwidth: float
    weights: float = inf

    def bound(self, task: TuningTask) -> float:
        """Return a latency in seconds that no program of a task is under.

        What follows a product, an activation say, may take its turn where multiply-adds wait, and counts nothing.
        """
        size = sum(argument_bytes(task.mod))
        flops = product_flops(task.mod) or task.flops
        flops /= gain_of_tiles(task.mod["main"])
        return max(flops / self.flops, size / self.bandwidth, _product_weights(task) / self.weights)

    def raised(self, task: TuningTask, latency: float) -> Self:
        """Return the roofline at which a product may take so many seconds, where it is faster than this one allows."""
        flops = max(self.flops, product_flops(task.mod) / gain_of_tiles(task.mod["main"]) / latency)
        return replace(self, flops=flops, weights=max(self.weights, _product_weights(task) / latency))


def _product_weights(task: TuningTask) -> int:
    """Return the bytes of weights that a product reads; of a table that is looked up, a task reads a few rows."""
    return constant_bytes(task.mod) if product_flops(task.mod) else 0


def measure_roofline(measure: Measure, cores: int) -> Roofline | None:
    """Measure the roofline; None where its kernels do not run, as on a device that is no CPU.

    Args:
        measure: measures programs on the machine.
        cores: that a program takes.
    """
    kernels = [*(_multiply(*tile, cores) for tile in _TILES), _copy(cores), _read(cores)]
    rates = [0.0] * len(kernels)
    jobs = [(task, untuned_candidate(task)) for task, _ in kernels]
    for _ in range(_PASSES):
        for index, measurement in measure(jobs):
            if measurement.error is None:
                rates[index] = max(rates[index], kernels[index][1] / min(measurement.latencies))
    *flops, bandwidth, weights = rates
    return Roofline(max(flops), bandwidth, weights or inf) if max(flops) and bandwidth else None


def _multiply(rows: int, width: int, cores: int) -> tuple[TuningTask, float]:
    """Return a kernel of multiply-adds in registers, and its FLOPs."""
    a = te.placeholder((_DEPTH, rows), name="a")
    b = te.placeholder((_DEPTH, width), name="b")
    k = te.reduce_axis((0, _DEPTH), name="k")
    shape = (cores, _REPEATS, rows, width)
    out: Any = te.compute(shape, lambda core, n, i, j: te.sum(a[k, i] * b[k, j], axis=k), name="out")
    schedule = _schedule([a, b, out])
    block = schedule.get_sblock("out")
    written = schedule.cache_write(block, 0, "local")
    core, n, i, j, depth = schedule.get_loops(block)
    schedule.reorder(core, n, depth, i, j)
    schedule.reverse_compute_at(written, n)
    for row, column in ((i, j), schedule.get_loops(written)[-2:]):
        schedule.unroll(row)
        schedule.vectorize(column)
    schedule.parallel(core)
    schedule.decompose_reduction(block, depth)
    return _task(f"peak-{rows}x{width}", schedule), 2.0 * prod(shape) * _DEPTH


def _copy(cores: int) -> tuple[TuningTask, float]:
    """Return a kernel that reads and writes a cache's worth of floats, and its bytes."""
    source = te.placeholder((cores, _COPIED // 16, 16), name="source")
    out: Any = te.compute(source.shape, lambda core, i, j: source[core, i, j] + 1.0, name="out")
    schedule = _schedule([source, out])
    core, _, j = schedule.get_loops(schedule.get_sblock("out"))
    schedule.vectorize(j)
    schedule.parallel(core)
    return _task("bandwidth", schedule), 8.0 * cores * _COPIED


def _read(cores: int) -> tuple[TuningTask, float]:
    """Return a kernel that adds up the rows of weights, and their bytes."""
    shape = (cores, _WEIGHTS // 64, 64)
    weights = te.placeholder(shape, name="weights")
    k = te.reduce_axis((0, shape[1]), name="k")
    out: Any = te.compute((cores, 64), lambda core, i: te.sum(weights[core, k, i], axis=k), name="out")
    schedule = _schedule([weights, out], layout_free_buffers=[0])
    block = schedule.get_sblock("out")
    written = schedule.cache_write(block, 0, "local")
    core, i, row = schedule.get_loops(block)
    schedule.reorder(core, row, i)
    schedule.reverse_compute_at(written, core)
    for column in (i, schedule.get_loops(written)[-1]):
        schedule.vectorize(column)
    schedule.parallel(core)
    schedule.decompose_reduction(block, row)
    return _task("weights", schedule), 4.0 * prod(shape)


def _schedule(args: list[Any], **attributes: Any) -> Any:
    facts: dict[str, Any] = {"global_symbol": "main"} | attributes
    function = te.create_prim_func(args).with_attrs(facts)
    return Schedule(tvm.IRModule({"main": function}))


def _task(name: str, schedule: Any) -> TuningTask:
    return TuningTask(name, name, "roofline", 1, schedule.mod, 0.0)
