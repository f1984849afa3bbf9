"""How a budget is spent: in time, until it stops itself, by any sampler, on tasks that have a choice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from adapt_kit import LITTLE, Lab, make_candidates, run, toolbox
from tchub.hub.adaptation.settings import AdaptProgress
from tchub.hub.adaptation.tools import Base
from tchub.hub.networks.tasks import TuningTask
from tchub.hub.device.candidate import Candidate
from tchub.hub.search.errors import InterruptedRunError, NoCandidateError


class Noting(AdaptProgress):
    """Keeps the lines that stand above the bars."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_time_as_a_budget(base: Base, tmp_path: Path):
    """Each program costs a second here: 40 s are about 40 programs, 8 of them held out."""
    result = run(base, Lab(), tmp_path, budget="40s", rounds=2)
    assert 36 <= result.measured <= 41
    assert result.measuring_seconds <= 41
    assert Counter(p.part for p in result.picks)["hold-out"] == 8


def test_a_budget_above_the_pool_is_all_of_it_and_says_so(base: Base, tmp_path: Path):
    progress = Noting()
    result = run(base, Lab(), tmp_path, budget=9999, programs_per_task=12, progress=progress)
    assert result.measured == result.pool_size == 72
    assert result.budget == "9999 (the whole pool: 72)"
    assert any(result.budget in note for note in progress.notes)


class Pipelined(Lab):
    """Keeps programs in hand, as builders do: the clock ends a batch when it hears of a result, some later."""

    def measure(self, candidates):
        hand: list[Candidate] = []
        for candidate in candidates:
            hand.append(candidate)
            if len(hand) == 8:
                yield from super().measure([hand.pop(0)])
        yield from super().measure(hand)


def test_a_time_ends_where_it_ended_when_the_same_is_run_again(base: Base, tmp_path: Path):
    first, again = Pipelined(), Pipelined()
    options = {"budget": "40s", "rounds": 2}
    result = run(base, first, tmp_path, **options)
    repeated = run(base, again, tmp_path, **options)
    assert not again.measured
    assert [p.key for p in repeated.picks] == [p.key for p in result.picks]
    assert repeated.guard == result.guard


def test_a_killed_run_in_time_learns_from_all_that_was_paid_for(base: Base, tmp_path: Path):
    options = {"budget": "40s", "rounds": 2}
    killed = Pipelined(stop_after=30)
    with pytest.raises(InterruptedRunError):
        run(base, killed, tmp_path, **options)
    rest = Pipelined()
    result = run(base, rest, tmp_path, **options)
    assert not set(killed.measured) & set(rest.measured)
    assert {(p.task_id, p.key) for p in result.picks} == {*killed.measured, *rest.measured}


def test_a_time_for_less_than_a_program_a_round_is_spent_a_program_a_round(base: Base, tmp_path: Path):
    result = run(base, Lab(), tmp_path, budget="30s", rounds=50)
    assert 28 <= result.measured <= 31


def test_a_budget_that_stops_itself_says_what_it_decided_on(base: Base, tmp_path: Path):
    """A second a program here: a user in a hurry stops after the least rounds."""
    progress = Noting()
    hurried = run(base, Lab(), tmp_path, budget="auto", rounds=1, worth=1e-3, progress=progress)
    assert len(hurried.curve) == len(progress.notes) == 2
    assert hurried.stop is not None
    assert hurried.stop.stop
    assert hurried.stop.worth < hurried.stop.cost
    assert hurried.stop.reason in progress.notes[-1]
    labels = [point.labels for point in hurried.curve]
    assert labels == sorted(labels)
    assert Counter(pick.part for pick in hurried.picks)["hold-out"] == 24, "four of each task"
    patient = run(base, Lab(), tmp_path, budget="auto", rounds=2, worth=1e-3)
    assert patient.measured > hurried.measured
    assert patient.measured <= patient.pool_size / 2
    assert patient.reused == hurried.measured, "the same programs first"
    assert json.loads(json.dumps(patient.as_dict()))["curve"][0] == hurried.as_dict()["curve"][0]


def test_a_first_batch_of_one_program_a_task_buys_two_of_half_of_the_tasks(base: Base, tmp_path: Path):
    """24 programs to learn from in four batches: the six of the first would have no order, one of each task."""
    progress = Noting()
    result = run(base, Lab(), tmp_path, budget=30, programs_per_task=24, rounds=3, progress=progress)
    batches = [Counter(p.task_id for p in result.picks if p.round == number) for number in range(4)]
    assert [sum(batch.values()) for batch in batches] == [6, 6, 6, 6]
    assert list(batches[0].values()) == [2, 2, 2]
    assert len({task for batch in batches for task in batch}) == 6, "the later rounds reach all tasks"
    assert not progress.notes, "every round had a model"


@pytest.mark.parametrize("sampler", ["random", "stratified"])
def test_other_samplers(base: Base, tmp_path: Path, sampler: str):
    result = run(base, Lab(), tmp_path, sampler=sampler, **LITTLE)
    assert result.sampler == sampler
    assert all(pick.total is None for pick in result.picks)
    assert result.measured == 40


def test_progress_is_told_of_every_program(base: Base, tmp_path: Path):
    class Counting(AdaptProgress):
        def __init__(self) -> None:
            self.steps: Counter[str] = Counter()

        def start(self, phase: str, total: int) -> None:
            self.phase = phase
            self.steps[f"{phase} of"] += total

        def advance(self, failed: bool = False) -> None:
            self.steps[self.phase] += 1

    progress = Counting()
    run(base, Lab(), tmp_path, progress=progress, **LITTLE)
    for phase in ("candidates", "hold-out", "first batch", "round 1 of 1"):
        assert progress.steps[phase] == progress.steps[f"{phase} of"] > 0


def test_tasks_without_a_choice_of_programs_are_skipped_and_named(base: Base, tmp_path: Path):
    def some(task: TuningTask, *rest: Any) -> list[Candidate]:
        if task.op == "softmax":
            raise NoCandidateError("softmax has no valid program on this target")
        return make_candidates(task, *rest)[: 1 if task.task_id == f"{0:016x}" else None]

    result = run(base, Lab(), tmp_path, tools=toolbox(base, Lab(), make_candidates=some), **LITTLE)
    assert dict(result.skipped).keys() == {"fused_softmax_4", "fused_conv2d_0"}
    assert "nothing to rank" in dict(result.skipped)["fused_conv2d_0"]
    assert len(result.tasks) == 4
