"""Adapting when something is wrong: stopped, full, empty, failing or asked for nonsense."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adapt_kit import LITTLE, OPS, Lab, latency_of, make_candidates, make_task, run, toolbox
from tchub.hub.adaptation import adapt as adapt_module
from tchub.hub.adaptation.adapt import AdaptArgumentError, AdaptBusyError
from tchub.hub.adaptation.pool import EmptyPoolError
from tchub.hub.adaptation.settings import AdaptProgress
from tchub.hub.adaptation.tools import Base, Tools, detect
from tchub.hub.device.errors import MeasurementFailureRateError, UnknownDeviceChoiceError
from tchub.hub.networks.errors import UnknownNetworkError
from tchub.hub.networks.tasks import TuningTask
from tchub.hub.registry.errors import StoreError
from tchub.hub.device.candidate import Candidate
from tchub.hub.search.errors import InterruptedRunError, NoCandidateError
from tchub.zoo.adapt import SAMPLERS, BudgetError, LabelError, UnknownSamplerError
from tchub.zoo.adapt.errors import MethodError
from tchub.zoo.corpus.schema import OPS as CLASSES
from tchub.zoo.features import DeviceKindError


def test_an_interrupted_run_goes_on_where_it_stopped(base: Base, tmp_path: Path):
    lab = Lab(stop_after=27)
    with pytest.raises(InterruptedRunError, match="27 measured") as caught:
        run(base, lab, tmp_path, **LITTLE)
    assert caught.value.exit_code == 130
    rest = Lab()
    resumed = run(base, rest, tmp_path, **LITTLE)
    whole = run(base, Lab(), tmp_path / "another", **LITTLE)
    assert len(rest.measured) == 40 - 27
    assert resumed.reused == 27
    assert {(p.task_id, p.key) for p in resumed.picks} == {(p.task_id, p.key) for p in whole.picks}
    assert resumed.guard == whole.guard


@pytest.mark.parametrize("step", ["few-shot: cross-validate", "few-shot: learn"])
def test_ctrl_c_while_learning_stops_at_once_and_loses_nothing(base: Base, tmp_path: Path, step: str):
    class Impatient(AdaptProgress):
        def start(self, phase: str, total: int) -> None:
            if phase == step:
                os.kill(os.getpid(), signal.SIGINT)

    lab, rest = Lab(), Lab()
    with pytest.raises(InterruptedRunError, match="while learning from 40 measured") as caught:
        run(base, lab, tmp_path, progress=Impatient(), **LITTLE)
    assert caught.value.exit_code == 130
    assert run(base, rest, tmp_path, **LITTLE).reused == 40
    assert not rest.measured


def test_making_candidates_can_be_interrupted_and_is_not_repeated(base: Base, tmp_path: Path):
    made: list[str] = []

    def counted(task: TuningTask, *rest: Any) -> list[Candidate]:
        made.append(task.task_id)
        if len(made) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return make_candidates(task, *rest)

    tools = toolbox(base, Lab(), make_candidates=counted)
    with pytest.raises(InterruptedRunError, match="making candidates"):
        run(base, Lab(), tmp_path, tools=tools, **LITTLE)
    run(base, Lab(), tmp_path, tools=tools, **LITTLE)
    assert len(made) == len(OPS)


def test_a_folder_that_cannot_be_written_is_a_clear_error(base: Base, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError) as caught:
        run(base, Lab(), tmp_path / "file" / "work")
    assert "a file is where a folder should be" in caught.value.message
    assert "set --work-dir or TCHUB_HOME to another folder" in caught.value.remedy


def test_a_mistyped_workload_is_refused_before_anything_is_opened(base: Base, tmp_path: Path):
    tools = replace(toolbox(base, Lab()), check_workload=Tools().check_workload, find_base=None)
    with pytest.raises(UnknownNetworkError) as caught:
        run(base, Lab(), tmp_path / "work", tools=tools, workload="bert-tinny")
    assert caught.value.fields["nearest"][0] == "bert-tiny"
    assert not (tmp_path / "work").exists()


def test_a_full_disk_while_making_candidates_leaves_no_half_file(base: Base, tmp_path: Path, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="no space left"):
        run(base, Lab(), tmp_path)
    assert list((tmp_path / "pool").iterdir()) == []


def test_measurements_of_another_target_are_not_reused(base: Base, tmp_path: Path):
    run(base, Lab(), tmp_path, **LITTLE)
    lab = Lab()
    tools = toolbox(base, lab)
    other = replace(tools.detect("local", 1), target={"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1})
    result = run(base, lab, tmp_path, tools=replace(tools, detect=lambda device, threads: other), **LITTLE)
    assert len(lab.measured) == 40
    assert result.reused == 0
    assert len(list(tmp_path.glob("corpus-*"))) == 2


def test_an_empty_pool_is_an_error(base: Base, tmp_path: Path):
    def none(task: TuningTask, *_: Any) -> list[Candidate]:
        raise NoCandidateError(f"{task.name} has no valid program")

    with pytest.raises(EmptyPoolError, match="none of 6 tasks"):
        run(base, Lab(), tmp_path, tools=toolbox(base, Lab(), make_candidates=none))


def test_every_program_failing_stops_early_and_names_the_commonest_error(base: Base, tmp_path: Path):
    lab = Lab(fails=lambda candidate: True)
    with pytest.raises(MeasurementFailureRateError, match="no such loop") as caught:
        run(base, lab, tmp_path)
    assert len(lab.measured) == 16
    assert caught.value.fields["commonest"] == "build: no such loop"
    assert "tries these programs again" in caught.value.remedy
    mended = Lab()
    result = run(base, mended, tmp_path)
    assert (result.failed, result.reused) == (0, 0), "the machine failed, not the programs"
    assert {lab.measured[0], lab.measured[-1]} <= set(mended.measured)


def test_a_run_that_is_stopped_while_everything_fails_tries_it_again(base: Base, tmp_path: Path):
    with pytest.raises(InterruptedRunError):
        run(base, Lab(fails=lambda candidate: True, stop_after=9), tmp_path, **LITTLE)
    assert run(base, Lab(), tmp_path, **LITTLE).failed == 0


def test_programs_that_fail_among_others_are_not_tried_again(base: Base, tmp_path: Path):
    def fails(candidate: Candidate) -> bool:
        return candidate.key.startswith("(64,")

    first = run(base, Lab(fails=fails), tmp_path, **LITTLE)
    again = Lab()
    assert run(base, again, tmp_path, **LITTLE).failed == first.failed > 0
    assert not again.measured


def test_a_tiny_budget_whose_programs_all_fail_says_so_too(base: Base, tmp_path: Path):
    with pytest.raises(MeasurementFailureRateError, match="12 of 12"):
        run(base, Lab(fails=lambda candidate: True), tmp_path, budget=12)


def test_constant_labels_are_an_error(base: Base, tmp_path: Path):
    with pytest.raises(LabelError):
        run(base, Lab(latency=lambda candidate: 1e-3), tmp_path)


def test_labels_that_are_not_numbers_are_failures_and_none_at_all_an_error(base: Base, tmp_path: Path):
    """A clock that gives NaN tells nothing of a program, though it ran."""
    some = run(
        base, Lab(latency=lambda c: float("nan") if c.key.startswith("(1,") else latency_of(c)), tmp_path, **LITTLE
    )
    assert some.measured == 40
    assert 0 < some.failed < 40
    assert some.guard.programs < 8
    with pytest.raises(MeasurementFailureRateError, match="nan"):
        run(base, Lab(latency=lambda candidate: float("nan")), tmp_path / "all")
    assert run(base, Lab(), tmp_path / "all", **LITTLE).failed == 0, "nor is such a clock believed for ever"


def test_a_budget_smaller_than_the_operator_classes_is_spent_and_says_what_it_saw(base: Base, tmp_path: Path):
    """Eight programs to learn from, ten classes: some class goes without, and no sampler stumbles over it."""
    lab = Lab()
    tasks = [replace(make_task(i % len(OPS)), task_id=f"{i:016x}", op=op) for i, op in enumerate(CLASSES)]
    tools = toolbox(base, lab, extract_tasks=lambda workload, target: tasks)
    result = run(base, lab, tmp_path, tools=tools, budget=12, rounds=3, programs_per_task=16)
    assert result.measured == 12
    learnt = [task.op for task in result.tasks if task.learn]
    assert 0 < len(learnt) < len(CLASSES)
    assert result.guard.tasks == 1


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_every_sampler_spends_a_tiny_budget(base: Base, tmp_path: Path, sampler: str):
    result = run(base, Lab(), tmp_path, sampler=sampler, budget=30, programs_per_task=16, rounds=2)
    assert result.measured == 30
    assert len({(pick.task_id, pick.key) for pick in result.picks}) == 30


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"budget": 0}, BudgetError),
        ({"budget": "200%"}, BudgetError),
        ({"budget": "1%"}, BudgetError),
        ({"budget": "3s"}, BudgetError),
        ({"sampler": "psychic"}, UnknownSamplerError),
        ({"method": "telepathy"}, MethodError),
        ({"rounds": 0}, AdaptArgumentError),
        ({"worth": 0.0}, AdaptArgumentError),
        ({"programs_per_task": 0}, AdaptArgumentError),
        ({"seed": -1}, AdaptArgumentError),
    ],
)
def test_arguments_without_a_meaning_are_refused_with_a_remedy(base: Base, tmp_path: Path, options, error):
    lab = Lab()
    with pytest.raises(error) as caught:
        run(base, lab, tmp_path, **options)
    assert caught.value.remedy
    assert len(lab.measured) <= 8, "at most the probe of a budget of time"


@pytest.mark.parametrize(("budget", "known"), [(5, "a count"), ("1%", "the tasks")])
def test_a_budget_that_reaches_for_nothing_is_refused_before_candidates_are_made(
    base: Base, tmp_path: Path, budget: str | int, known: str
):
    made: list[str] = []

    def noted(what: str, real: Any) -> Any:
        return lambda *given: made.append(what) or real(*given)

    tools = toolbox(base, Lab())
    tools = replace(
        tools,
        find_base=noted("base", tools.find_base),
        extract_tasks=noted("tasks", tools.extract_tasks),
        make_candidates=noted("candidates", tools.make_candidates),
    )
    with pytest.raises(BudgetError, match="adapting needs 12"):
        run(base, Lab(), tmp_path, tools=tools, budget=budget)
    assert made == ([] if known == "a count" else ["base", "tasks"])


def test_only_this_machine_can_be_measured():
    with pytest.raises(UnknownDeviceChoiceError, match="v100"):
        detect("v100", 1)


def test_a_checkpoint_of_gpus_is_refused_where_programs_are_for_a_cpu(base: Base, tmp_path: Path):
    config = replace(base.checkpoint.config, feature_schema="tcl-gpu")
    lab = Lab()
    with pytest.raises(DeviceKindError, match="reads tcl-gpu, but the programs are for") as caught:
        run(replace(base, checkpoint=replace(base.checkpoint, config=config)), lab, tmp_path)
    assert "tchub list --kind cpu" in caught.value.remedy
    assert lab.opened == 0


def test_two_runs_may_not_measure_at_the_same_time(base: Base, tmp_path: Path):
    with adapt_module._locked(tmp_path), pytest.raises(AdaptBusyError):
        run(base, Lab(), tmp_path)
