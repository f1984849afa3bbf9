"""The roofline of this machine, and the latency that it allows a task."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import tvm
from tchub.hub.device.measure import Measurement, Measurer
from tchub.hub.networks.tasks import TuningTask, make_task
from tchub.hub.search.measuring import Job, WorkerMeasure
from tchub.hub.search.roofline import Roofline, measure_roofline
from tvm import te


@pytest.fixture(scope="module")
def product() -> TuningTask:
    """A product of 16 x 64 and weights of 64 x 32, with what follows it."""
    x, weights = te.placeholder((16, 64), name="x"), te.placeholder((64, 32), name="weights")
    k = te.reduce_axis((0, 64), name="k")
    out: Any = te.compute((16, 32), lambda i, j: te.sum(x[i, k] * weights[k, j], axis=k), name="out")
    function = te.create_prim_func([x, weights, out]).with_attrs({"layout_free_buffers": [1]})
    return replace(make_task(tvm.IRModule({"main": function}), "product"), weight=3)


def test_a_task_takes_as_long_as_the_slowest_of_what_it_does(product: TuningTask) -> None:
    flops, moved, weights = 2 * 16 * 64 * 32, 4 * (16 * 64 + 64 * 32 + 16 * 32), 4 * 64 * 32
    assert Roofline(flops=1e3, bandwidth=1e9).bound(product) == flops / 1e3
    assert Roofline(flops=1e9, bandwidth=1e3, weights=1e9).bound(product) == moved / 1e3
    low = Roofline(flops=1e9, bandwidth=1e9, weights=1e3)
    assert low.bound(product) == weights / 1e3
    raised = low.raised(product, latency=1.0)
    assert (raised.flops, raised.weights) == (1e9, weights), "a product that is faster raises what held it back"


def test_of_a_table_that_is_looked_up_few_rows_are_read() -> None:
    table, rows = te.placeholder((1000, 64), name="table"), te.placeholder((4,), "int32", name="rows")
    out: Any = te.compute((4, 64), lambda i, j: table[rows[i], j], name="out")
    function = te.create_prim_func([table, rows, out]).with_attrs({"layout_free_buffers": [0]})
    task = make_task(tvm.IRModule({"main": function}), "take")
    assert Roofline(flops=1e9, bandwidth=1e9, weights=1.0).bound(task) < 1e-3


def test_this_machine_has_a_roofline_whatever_weights_its_programs_are_timed_beside(
    target_dict: dict[str, Any],
) -> None:
    with Measurer(target_dict) as measurer:
        measure = WorkerMeasure(measurer)
        for beside in (0, 64 << 20):
            measure.of_network(beside)
            assert measurer.config.timing.weights == beside
            roofline = measure_roofline(measure, 1)
            assert 1e9 < roofline.flops < 1e13
            assert 1e8 < roofline.weights < 1e13


def test_the_fastest_repeat_counts_and_of_kernels_that_fail_nothing_is_known() -> None:
    def measure(*passes: Callable[[int], Measurement]) -> Roofline | None:
        left = iter(passes)

        def once(jobs: list[Job]) -> Iterator[tuple[int, Measurement]]:
            run = next(left)
            return ((index, run(index)) for index in range(len(jobs)))

        return measure_roofline(once, 1)  # type: ignore[arg-type]

    def took(*seconds: float) -> Callable[[int], Measurement]:
        return lambda _: Measurement(seconds, None, None, 0.0, 0.0, 0.0)

    slow, fast = (measure(took(*one), took(5.0)) for one in ((4.0,), (4.0, 2.0)))
    assert (fast.flops, fast.bandwidth, fast.weights) == (2 * slow.flops, 2 * slow.bandwidth, 2 * slow.weights)
    failed = Measurement((), "run", "no such device", 0.0, 0.0, 0.0)
    without = measure(*[lambda index: failed if index == 4 else took(1.0)(index)] * 2)
    assert without.weights == inf, "the rest is known without the kernel that reads weights"
    assert measure(*[lambda _: failed] * 2) is None
