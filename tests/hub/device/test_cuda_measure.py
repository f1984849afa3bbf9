"""Measuring on a card of paper: real schedules, checked outputs; a fault costs its program, a lost card the run."""

from dataclasses import replace
from typing import Any

import pytest
import tvm
from paper_card import PaperCard
from tchub.hub.device.cuda_measure import CudaMeasurer
from tchub.hub.device.errors import DeviceError
from tchub.hub.device.measure import MeasureConfig
from tchub.hub.device.meta_schedule import BuilderRunner
from tchub.hub.networks.tasks import make_task
from tchub.hub.networks.workloads import operator_module
from tchub.hub.search.candidates import random_candidates
from tchub.zoo.corpus.workloads import OperatorSpec
from tchub.zoo.devices import get_device
from tchub.zoo.errors import TchubWarning
from tvm import te
from tvm.s_tir import meta_schedule as ms

TARGET = get_device("t4").target
TVM_TARGET = tvm.target.Target(TARGET)
LIMITS = {"run_timeout": 2.0, "build_timeout": 60.0}


@pytest.fixture(scope="module")
def candidates(small_task: Any) -> list[Any]:
    return random_candidates(small_task, TVM_TARGET, 4, seed=0)


def measured(candidates: list[Any], *tasks: Any) -> tuple[list[Any], CudaMeasurer]:
    """Measure programs in their order of compiling, after the references of some tasks."""
    with CudaMeasurer(0, TARGET, MeasureConfig(**LIMITS)) as measurer:
        for task in tasks:
            measurer.refer(task.task_id, task.mod).result()
        results = {candidate.key: measurement for candidate, measurement in measurer.measure(candidates)}
    return [results[candidate.key] for candidate in candidates], measurer


def test_programs_are_measured_and_their_outputs_checked(
    card: PaperCard, candidates: list[Any], small_task: Any
) -> None:
    """Those of the softmax have rows that no warp fills, so that threads that share a reduction shuffle."""
    softmax = make_task(operator_module(OperatorSpec("rows", "softmax", {"rows": 24, "columns": 48})), "rows")
    rows = random_candidates(softmax, TVM_TARGET, 2, seed=0)
    results, measurer = measured([*candidates, *rows], small_task, softmax)
    assert [result.error for result in results] == [None] * 6, [result.message for result in results]
    assert measurer.watched["checked"] == 6
    assert not measurer.unchecked
    assert all(0 < result.latency < 10 for result in results), "the flushing, 100 seconds each time, is left out"
    assert len({result.latency for result in results}) > 1


def test_programs_that_were_compiled_before_are_taken_from_the_cache_unless_they_were_changed(
    card: PaperCard, candidates: list[Any], small_task: Any
) -> None:
    for compiled in (3, 4):
        for _ in range(2):
            results, measurer = measured(candidates[:3], small_task)
            assert [(one.error, one.latency > 0) for one in results] == [(None, True)] * 3
            assert (measurer.watched["checked"], card.compiled) == (3, compiled)
        if compiled == 3:
            entry = min((card.folder / "cache" / "cubins").glob("*/*"))
            entry.write_bytes(entry.read_bytes()[:-1])


def test_metaschedules_builder_and_runner_take_the_card_and_what_was_compiled_before(
    card: PaperCard, candidates: list[Any], small_task: Any
) -> None:
    measured(candidates[:3], small_task)
    with BuilderRunner(MeasureConfig(**LIMITS), card=0) as own:
        built = own.builder.build([ms.builder.BuilderInput(one.mod, TVM_TARGET) for one in candidates[:3]])
        infos = [ms.arg_info.ArgInfo.from_entry_func(one.mod, remove_preproc=True) for one in candidates[:3]]
        inputs = [
            ms.runner.RunnerInput(one.artifact_path, "cuda", info) for one, info in zip(built, infos, strict=True)
        ]
        results = [future.result() for future in own.runner.run(inputs)]
    assert [(result.error_msg, min(result.run_secs) > 0) for result in results] == [(None, True)] * 3
    assert card.compiled == 3


def test_a_program_that_computes_something_else_is_found(
    card: PaperCard, candidates: list[Any], small_task: Any
) -> None:
    a, b = te.placeholder((32, 16), name="a"), te.placeholder((16, 24), name="b")
    k = te.reduce_axis((0, 16), name="k")
    thrice: Any = te.compute((32, 24), lambda i, j: te.sum(3.0 * a[i, k] * b[k, j], axis=k), name="thrice")
    right = tvm.IRModule({"main": te.create_prim_func([a, b, thrice]).with_attr("global_symbol", "main")})
    results, _ = measured(candidates[:1], replace(small_task, mod=right))
    assert (results[0].error, results[0].latencies) == ("wrong_output", ())
    assert "argument 2 is off by" in results[0].message


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("illegal access", "run", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("an assert", "run", "CUDA_ERROR_ASSERT"),
        ("a memory error", "run", "CUDA_ERROR_ECC_UNCORRECTABLE"),
        ("too much memory", "run", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("a hang", "run_timeout", "killed"),
        ('"; this is no program', "build", "nvcc failed"),
    ],
)
def test_a_fault_costs_its_program_alone(
    card: PaperCard, candidates: list[Any], fault: str, error: str, message: str
) -> None:
    card.break_program(2, fault)
    results, _ = measured(candidates[:3])
    failed = [result for result in results if result.error]
    assert [result.error for result in failed] == [error]
    assert message in failed[0].message


def test_a_card_that_slows_down_is_told_with_the_reason(
    card: PaperCard, candidates: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    card.has_nvml(monkeypatch)
    card.becomes("shared")
    measurer = CudaMeasurer(0, TARGET, MeasureConfig(**LIMITS))
    results = [result for _, result in measurer.measure(candidates[:2])]
    card.becomes("slow")
    results += [result for _, result in measurer.measure(candidates[2:4])]
    assert [result.disturbed for result in results] == [False, False, True, True]
    assert measurer.watched["repeated"] == 4, "each twice more"
    with pytest.warns(TchubWarning, match="beside 2 of 4 programs") as caught:
        measurer.close()
    text = str(caught[0].message)
    assert all(reason in text for reason in ("its power limit", "its heat", "1 other processes")), text


def test_a_card_that_slows_down_is_told_without_nvml_too(card: PaperCard, candidates: list[Any]) -> None:
    measurer = CudaMeasurer(0, TARGET, MeasureConfig(**LIMITS))
    list(measurer.measure(candidates[:1]))
    card.becomes("slow")
    list(measurer.measure(candidates[1:2]))
    with pytest.warns(TchubWarning, match="beside 1 of 2 programs .see `nvidia-smi`"):
        measurer.close()


def test_a_lost_card_ends_the_run_and_what_was_measured_was_given(card: PaperCard, candidates: list[Any]) -> None:
    given = []
    with CudaMeasurer(0, TARGET, MeasureConfig(**LIMITS)) as measurer:
        results = measurer.measure(candidates * 3)
        given.append(next(results))
        card.becomes("lost")
        with pytest.raises(DeviceError, match="CUDA_ERROR_UNKNOWN") as caught:
            given.extend(results)
    assert len(given) < 3 * len(candidates)
    assert "run the same command again" in caught.value.remedy


@pytest.mark.parametrize(
    ("state", "message"), [("exclusive", "CUDA_ERROR_DEVICE_UNAVAILABLE"), ("full", "GiB of its memory are free")]
)
def test_a_card_that_others_hold_is_refused_before_anything_is_compiled(
    card: PaperCard, state: str, message: str
) -> None:
    card.becomes(state)
    with pytest.raises(DeviceError, match=message) as caught:
        CudaMeasurer(0, TARGET, MeasureConfig(**LIMITS))
    assert "nvidia-smi" in caught.value.remedy
