"""Measuring in a search: shared cores, this machine's roofline, and Ctrl-C."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import tvm
from tchub.hub.device.measure import Measurement, Measurer
from tchub.hub.networks.tasks import TuningTask, make_task
from tchub.hub.search import measuring
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.measuring import Job, WorkerMeasure
from tchub.hub.search.roofline import Roofline, measure_roofline
from tvm import te


@pytest.mark.parametrize(("preempts", "order"), [(True, "smsm"), (False, "ssmm")])
def test_nothing_is_searched_while_a_program_that_shares_its_core_is_timed(
    preempts: bool, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def measure(candidates: Iterator[Any]) -> Iterator[Any]:
        for candidate in candidates:
            events.append("m")
            yield candidate, Measurement((1e-3,))

    def jobs() -> Iterator[Any]:
        for number in range(2):
            events.append("s")
            yield SimpleNamespace(task_id="a", mod=None), number

    monkeypatch.setattr(measuring, "from_measure_candidate", lambda *candidate: list(candidate))
    measured = WorkerMeasure(SimpleNamespace(measure=measure, preempts=preempts))(jobs())
    assert [index for index, _ in measured] == [0, 1], "equal candidates are told apart"
    assert "".join(events) == order


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


def test_the_first_ctrl_c_asks_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_what_items_are_made_from_may_note_a_ctrl_c_that_would_break_off_the_making() -> None:
    def items(stop: StopFlag, reached: list[str]) -> Iterator[str]:
        with stop.noted():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the search ends by itself")
        yield "found"

    with StopFlag() as stop:
        reached: list[str] = []
        assert list(stop.each(items(stop, reached))) == ["found"]
        assert reached
        assert stop.requested


def test_a_ctrl_c_that_the_process_was_started_to_ignore_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as by `nohup tchub tune ... &`
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGINT)
        assert not stop.requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
