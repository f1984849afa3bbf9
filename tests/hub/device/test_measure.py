"""Measuring: real programs, real times; failures cost one program; a hopeless batch stops early."""

import math
import re
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Event, Timer
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tvm
from tchub.hub.device import build_jobs, jobs, rpc_session, timing
from tchub.hub.device.build_jobs import BuildResult, quickly_scheduled, with_aligned_stack
from tchub.hub.device.errors import DeviceError, MeasurementFailureRateError
from tchub.hub.device.jobs import RunResult, run
from tchub.hub.device.measure import Measurer, plan_workers
from tchub.hub.device.onsite.runs import random_values
from tchub.hub.device.pool import JobResult
from tchub.hub.device.timing import TimingConfig, turns_of
from tchub.zoo.files import file_sha256

pytestmark = pytest.mark.usefixtures("shared_zygote")


def test_every_candidate_is_measured_once_with_its_repeats_and_what_it_cost(
    target_dict: dict[str, Any], small_candidates: list[Any]
) -> None:
    with Measurer(target_dict) as measurer:
        measured = list(measurer.measure(small_candidates[:4]))
    assert sorted(c.key for c, _ in measured) == sorted(c.key for c in small_candidates[:4])
    for _, measurement in measured:
        assert measurement.error is None, measurement.message
        assert 0 < min(measurement.latencies) <= measurement.latency <= max(measurement.latencies) < 1
        assert min(measurement.build_seconds, measurement.run_seconds) > 0


def address(tensor: Any) -> int:
    """Return where a tensor's contents are."""
    return int(np.from_dlpack(tensor._create_view((int(np.prod(tensor.shape)),), "uint8")).ctypes.data)


def _served(args_info: Any) -> list[Any]:
    """The arguments of an RPC session, on this machine."""
    remote: Any = SimpleNamespace(cpu=tvm.cpu, get_function=lambda _: lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rpc_session, "_remote", remote)
        return [tensor.numpy() for tensor in rpc_session._arguments.__wrapped__(args_info)]


@pytest.mark.parametrize("contents", [random_values, _served])
def test_an_integer_argument_may_be_a_divisor_or_an_index(contents: Any) -> None:
    for rows, integers in ((2, {1}), (3, {1, 2}), (1000, {1, 2})):
        args_info = [[[rows, 8], "float32"], [[64], "int64"], [[64], "uint8"], [[64], "bool"]]
        _, *indices, mask = contents(args_info)
        assert all(set(np.unique(index)) == integers for index in indices), "no 0, and no row that is not there"
        assert set(np.unique(mask)) == {False, True}
    for dtype in ("float16", "float32", "int64", "bool"):
        (value,) = random_values([((), dtype)])
        assert (value.shape, value.dtype) == ((), np.dtype(dtype)), "one number is an array too"


@pytest.mark.parametrize("contents", [random_values, _served])
def test_weights_of_a_quantised_product_have_either_sign(contents: Any) -> None:
    """Also where four of them are one word: sums of one sign would all be cut off, and say nothing."""
    bytes_alone, words = contents([[[4, 8, 32], "int8"], [[4, 8, 32], "uint32"]])
    for weights in (bytes_alone, words.view(np.int8)):
        assert set(np.unique(weights)) == {-1, 1}
        assert abs(weights.mean()) < 0.1


def test_a_broken_program_fails_alone(target_dict: dict[str, Any], small_candidates: list[Any]) -> None:
    good, other = small_candidates[:2]
    broken = replace(other, key="broken", args_info=(((1,), "float32"),) * 3)  # wrong shapes for its arguments
    with Measurer(target_dict) as measurer:
        results = {c.key: m for c, m in measurer.measure([good, broken])}
    assert results[good.key].error is None
    assert results["broken"].error == "run"
    assert math.isnan(results["broken"].latency)
    assert measurer.outcomes == {"ok": 1, "run": 1}


def test_a_hopeless_batch_stops_and_names_the_commonest_error(
    target_dict: dict[str, Any], small_candidates: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [replace(small_candidates[0], key=str(i), args_info=()) for i in range(30)]
    monkeypatch.setattr("tchub.hub.device.errors.FAILURE_MINIMUM", 4)
    seen = []
    with Measurer(target_dict) as measurer, pytest.raises(MeasurementFailureRateError) as caught:
        seen.extend(measurer.measure(broken))
    assert len(seen) < 30
    assert caught.value.fields["failed"] == caught.value.fields["total"] >= 4
    assert "run" in caught.value.fields["commonest"]


@pytest.mark.parametrize(("overlaps", "order"), [(True, "drdrdr"), (False, "dddrrr")])
def test_a_built_program_runs_before_the_next_candidate_is_drawn(
    target_dict: dict[str, Any], small_candidates: list[Any], overlaps: bool, order: str
) -> None:
    def noted(event: str, value: Any) -> Any:
        events.append(event)
        return value

    def done(value: Any) -> Future[JobResult]:
        future: Future[JobResult] = Future()
        future.set_result(JobResult(value=value))
        return future

    events: list[str] = []
    with Measurer(target_dict) as measurer:
        measurer.overlaps, measurer.build = overlaps, lambda *_: done(BuildResult())
        measurer._start_run = lambda _: noted("r", done(RunResult([1e-3], 0.01)))
        assert len(list(measurer.measure(noted("d", one) for one in small_candidates[:3]))) == 3
    assert "".join(events) == order


HYPER_THREADED = [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize(
    ("cores", "threads", "timing", "building", "overlaps"),
    [
        ([(0,)], 1, (0,), [0], False),  # no core to spare: all build, and rest while a program is timed
        ([(0,), (1,)], 1, (1,), [0, 1], True),  # the builder on CPU 1 yields to the program
        (HYPER_THREADED, 1, (3,), [0, 1, 2, 3, 4, 5, 6], True),  # CPU 7 shares the core of CPU 3: it rests
        (HYPER_THREADED, 2, (2, 3), [0, 1, 2, 3, 4, 5], True),
        (HYPER_THREADED, 4, (0, 1, 2, 3), list(range(8)), False),
        (HYPER_THREADED, 6, (2, 3, 4, 5, 6, 7), list(range(8)), False),
    ],
)
def test_threads_of_a_program_share_no_physical_core_with_each_other_or_a_build(
    cores: list[tuple[int, ...]], threads: int, timing: tuple[int, ...], building: list[int], overlaps: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("tchub.hub.device.pool.real_time_granted", lambda: False)
    builders, runner, beside = plan_workers(cores, threads, 1 << 30)
    assert (runner.cpus, runner.threads, beside) == (timing, threads, overlaps)
    assert [cpu for builder in builders for cpu in builder.cpus or ()] == building
    assert all(one.idle is overlaps for one in builders if set(one.cpus or ()) & set(timing))


def test_no_compiler_is_said_clearly(target_dict: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(DeviceError, match="no C compiler") as caught:
        Measurer(target_dict)
    assert "install" in str(caught.value.remedy)


def test_a_library_that_was_changed_is_not_run(tmp_path: Path) -> None:
    library = tmp_path / "program.so"
    library.write_bytes(b"built")
    sha256 = file_sha256(library)
    library.write_bytes(b"another")
    with pytest.raises(DeviceError, match="not the library that was built"):
        run(str(library), (), TimingConfig(), None, built=BuildResult(0.1, sha256))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_weights_are_at_another_place_in_each_run_until_their_memory_is_used_up(dtype: str) -> None:
    size, shape = 1 << 20, [100, 33]
    nbytes = math.prod(shape) * tvm.DataType(dtype).itemsize
    args = [tvm.runtime.tensor(contents) for contents in random_values([([4], "float32"), (shape, dtype)])]
    turns = turns_of([([4], "float32"), (shape, dtype)], args, [1], size)
    taken = [next(turns) for _ in range(2 * size // nbytes)]
    assert all(one[0] is args[0] and list(one[1].shape) == shape and one[1].dtype == dtype for one in taken)
    addresses = [address(one[1]) for one in taken]
    assert min(abs(a - b) for a, b in pairwise(addresses)) >= nbytes
    assert max(addresses) - min(addresses) <= size
    assert len(set(addresses)) < len(addresses), "and begin again"


@pytest.mark.parametrize("shares", [(0.6,), (0.6, 0.3), (0.7, 0.7), (0.5, 0.4), (0.3, 0.3, 0.3)])
def test_weights_of_more_than_half_of_their_memory_have_another_place_too(shares: tuple[float, ...]) -> None:
    size = 1 << 20
    info = [([int(share * size / 4)], "float32") for share in shares]
    args = [tvm.runtime.tensor(contents) for contents in random_values(info)]
    turns = turns_of(info, args, range(len(shares)), size)
    timing._taken["float32"] = size // 4 + 64  # where another program ended
    runs = [[(at := address(x), at + 4 * x.shape[0]) for x in next(turns)] for _ in range(7)]
    for before, after in pairwise(runs):
        assert all(a[1] <= b[0] or b[1] <= a[0] for a in before for b in after)


def test_a_check_that_takes_long_is_the_measurement(
    target_dict: dict[str, Any], small_candidates: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, info = str(tmp_path / "one.so"), small_candidates[0].args_info
    built = build_jobs.build(tvm.ir.save_json(small_candidates[0].mod), target_dict, library)
    right = info, str(tmp_path / "right.npz")
    jobs.make_reference(library, built.sha256, *right)
    monkeypatch.setattr(jobs, "_LONG", 0.0)
    monkeypatch.setattr(jobs, "time_kernel", Mock(return_value=[1.0]))
    for best, timed in ((1e-12, False), (1.0, True), (None, True)):
        assert (run(library, info, TimingConfig(), best, right, built=built).latencies == [1.0]) == timed


def test_a_program_is_told_its_weights_and_timed_with_them_in_turn(target_dict: dict[str, Any], tmp_path: Path) -> None:
    from tvm import te, topi

    a, b = te.placeholder((16, 64), name="a"), te.placeholder((64, 64), name="b")
    func = te.create_prim_func([a, b, topi.matmul(a, b)])
    func = func.with_attrs({"global_symbol": "main", "layout_free_buffers": [1]})
    library, info = str(tmp_path / "one.so"), [([16, 64], "float32"), ([64, 64], "float32"), ([16, 64], "float32")]
    built = build_jobs.build(tvm.ir.save_json(tvm.IRModule({"main": func})), target_dict, library)
    assert built.weights == (1,)
    before = timing._taken["float32"]
    result = run(library, info, TimingConfig(weights=1 << 20), None, built=built)
    assert result.wrong is None
    assert all(0 < seconds < 1 for seconds in result.latencies)
    assert timing._taken["float32"] != before


def test_functions_align_their_stack(target: Any, small_candidates: list[Any], tmp_path: Path) -> None:
    """What they compute is checked with each program that is measured."""
    aligned = with_aligned_stack(tvm.tirx.build(small_candidates[0].mod, target=target))
    aligned.write_to_file(path := str(tmp_path / "code.ll"), "ll")
    code = Path(path).read_text()
    groups = set(re.findall(r"^define .* #(\d+) ", code, re.MULTILINE))
    assert groups
    for group in groups:
        assert re.search(rf'^attributes #{group} = {{.*"stackrealign"', code, re.MULTILINE)


def test_llvm_compares_fewer_accesses_and_keeps_the_options_of_a_target(
    target_dict: dict[str, Any], small_candidates: list[Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = tvm.target.Target({**target_dict, "cl-opt": ["-unroll-threshold:uint=100"]})
    options = list(quickly_scheduled(given).attrs["cl-opt"])
    assert options[1:] == ["-unroll-threshold:uint=100"], "the user's come last, and count"
    built = tvm.tirx.build(small_candidates[0].mod, target=quickly_scheduled(given))
    built.write_to_file(path := str(tmp_path / "code.ll"), "ll")
    assert options[0] in Path(path).read_text(), "LLVM has it when the text is read again"
    assert "Error" not in capfd.readouterr().err, "TVM passes over an option that its LLVM does not know, and says so"


def test_without_a_core_to_spare_nothing_is_built_while_a_program_is_timed(
    target_dict: dict[str, Any], small_candidates: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    order, begin = [], Event()

    def reference(task_id: str, mod: Any) -> None:
        begin.wait(10)
        order.append(task_id)

    def timed(*_: Any) -> Future[JobResult]:
        order.append("timed")
        done = Future[JobResult]()
        done.set_result(JobResult(RunResult([1e-3], 0.1)))
        return done

    with Measurer(target_dict) as measurer:
        monkeypatch.setattr(measurer, "overlaps", False)
        monkeypatch.setattr(measurer, "_make_reference", reference)
        monkeypatch.setattr(measurer, "submit_run", timed)
        for task_id in ("one", "two"):
            measurer.refer(task_id, small_candidates[0].mod)
        Timer(0.2, begin.set).start()
        assert len(list(measurer.measure(small_candidates[:2]))) == 2
    assert set(order[:2]) == {"one", "two"}
    assert order[2:] == ["timed", "timed"]
