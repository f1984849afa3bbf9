"""The rounds: how a budget is spent, who picks first, and that a run that ended early goes on where it stopped."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from adapt_kit import LITTLE, KillAt, KilledError, Lab, Noting, run
from tchub.hub.adaptation import session as session_module
from tchub.hub.api import CheckpointChoice
from tchub.hub.device.candidate import Candidate
from tchub.hub.registry import Registry
from tchub.hub.search.errors import InterruptedRunError
from tchub.zoo.adapt.sampling import SAMPLERS


class Counting(Noting):
    """Counts the steps of each phase, too."""

    def __init__(self) -> None:
        super().__init__()
        self.totals, self.steps = Counter[str](), Counter[str]()

    def start(self, phase: str, total: int) -> None:
        self.phase = phase
        self.totals[phase] += total

    def advance(self, failed: bool = False) -> None:
        self.steps[self.phase] += 1


def test_a_budget_above_the_pool_is_all_of_it_and_says_so(base: CheckpointChoice, tmp_path: Path):
    progress = Counting()
    result = run(base, Lab(), tmp_path, budget=9999, per_task=12, progress=progress)
    assert result.measurements.measured == result.measurements.pool_size == 72
    assert result.settings.budget == "9999 (the whole pool: 72)"
    assert any(result.settings.budget in note for note in progress.notes)
    for phase in ("candidates", "hold-out", "first batch", "round 1 of 1"):
        assert progress.steps[phase] == progress.totals[phase] > 0


class Pipelined(Lab):
    """Keeps programs in hand, as builders do: the clock ends a batch when it hears of a result, some later."""

    def measure(self, candidates):
        hand: list[Candidate] = []
        for candidate in candidates:
            hand.append(candidate)
            if len(hand) == 8:
                yield from super().measure([hand.pop(0)])
        yield from super().measure(hand)


def test_a_time_ends_where_it_ended_when_the_same_is_run_again(base: CheckpointChoice, tmp_path: Path):
    """Each program costs a second here: 40 s are about 40 programs, 8 of them held out."""
    again, options = Pipelined(), {"budget": "40s", "rounds": 2}
    result = run(base, Pipelined(), tmp_path, **options)
    assert 36 <= result.measurements.measured <= 48
    assert Counter(p.part for p in result.picks)["hold-out"] >= 8
    repeated = run(base, again, tmp_path, **options)
    assert not again.measured
    assert [p.key for p in repeated.picks] == [p.key for p in result.picks]
    assert repeated.judgement.guard == result.judgement.guard


def test_a_killed_run_in_time_learns_from_all_that_was_paid_for(base: CheckpointChoice, tmp_path: Path):
    """Each program costs a second here: 40 s are about 40 programs."""
    killed, rest, options = Pipelined(stop_after=30), Pipelined(), {"budget": "40s", "rounds": 2}
    with pytest.raises(InterruptedRunError):
        run(base, killed, tmp_path, **options)
    result = run(base, rest, tmp_path, **options)
    assert 36 <= result.measurements.measured <= 48
    assert not set(killed.measured) & set(rest.measured)
    assert {(p.task_id, p.key) for p in result.picks} == {*killed.measured, *rest.measured}


def test_a_budget_that_stops_itself_says_what_it_decided_on(base: CheckpointChoice, tmp_path: Path):
    """A second a program here: a user in a hurry stops after the least rounds."""
    progress = Noting()
    hurried = run(base, Lab(), tmp_path, budget="auto", rounds=1, worth=1e-3, progress=progress)
    assert len(hurried.curve) == len(progress.notes) == 2
    assert hurried.stop is not None
    assert hurried.stop.worth < hurried.stop.cost
    assert hurried.stop.reason in progress.notes[-1]
    assert Counter(pick.part for pick in hurried.picks)["hold-out"] == 24, "four of each task"
    patient = run(base, Lab(), tmp_path, budget="auto", rounds=2, worth=1e-3)
    assert hurried.measurements.measured < patient.measurements.measured <= patient.measurements.pool_size / 2
    assert patient.measurements.reused == hurried.measurements.measured, "the same programs first"
    assert patient.as_dict()["curve"][0] == hurried.as_dict()["curve"][0]


def test_a_run_that_goes_on_stops_where_the_first_one_did_whatever_its_clock_says(
    base: CheckpointChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Learning takes an hour in the second run: by its own clock no round would be worth its time."""
    options = LITTLE | {"budget": "auto", "rounds": 1, "worth": 10.0}
    first = run(base, Lab(), tmp_path, **options)
    ticks = iter(np.arange(0, 1e9, 3600.0))
    monkeypatch.setattr(session_module.time, "perf_counter", lambda: next(ticks))
    lab = Lab()
    again = run(base, lab, tmp_path, **options)
    assert again.stop == first.stop
    assert [point.labels for point in again.curve] == [point.labels for point in first.curve]
    assert not lab.measured


def test_a_first_batch_of_one_program_a_task_buys_two_of_half_of_the_tasks(base: CheckpointChoice, tmp_path: Path):
    """24 programs to learn from in four batches: the six of the first would have no order, one of each task."""
    progress = Noting()
    result = run(base, Lab(), tmp_path, budget=30, per_task=24, rounds=3, progress=progress)
    batches = [Counter(p.task_id for p in result.picks if p.round == number) for number in range(4)]
    assert [sum(batch.values()) for batch in batches] == [6, 6, 6, 6]
    assert list(batches[0].values()) == [2, 2, 2]
    assert len({task for batch in batches for task in batch}) == 6, "the later rounds reach all tasks"
    assert not progress.notes, "every round had a model"


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_every_sampler_spends_a_tiny_budget(base: CheckpointChoice, tmp_path: Path, sampler: str):
    """Round 0 is that of the sampler's paper, but for tchub's own, which ask the base."""
    result = run(base, Lab(), tmp_path, sampler=sampler, budget=30, per_task=16, rounds=2)
    assert result.measurements.measured == 30
    assert len({(pick.task_id, pick.key) for pick in result.picks}) == 30
    first = {"strata": "strata", "rdu+": "strata", "random": "random"}.get(sampler, "stratified")
    assert (result.settings.sampler, result.settings.first_sampler) == (sampler, first)
    if sampler in ("random", "stratified"):
        assert all(pick.total is None for pick in result.picks)


@pytest.mark.parametrize(
    ("sampler", "smaller", "larger"),
    [("rdu", "30s", "60s"), ("strata", 30, "auto")],
)
def test_a_larger_budget_pays_for_the_difference_only(
    base: CheckpointChoice, tmp_path: Path, sampler: str, smaller, larger
):
    options = {"sampler": sampler, "rounds": 2, "per_task": 16}
    first, rest, again = Lab(), Lab(), Lab()
    small = run(base, first, tmp_path, **options | {"budget": smaller})
    large = run(base, rest, tmp_path, **options | {"budget": larger})
    assert large.measurements.reused == small.measurements.measured == len(first.measured)
    assert not set(first.measured) & set(rest.measured)
    assert large.measurements.measured == len(first.measured) + len(rest.measured)
    parts = [{(p.task_id, p.key): p.part for p in one.picks} for one in (small, large)]
    assert parts[0].items() <= parts[1].items(), "what judged judges still, and what was learnt from is"
    for budget, expected in ((larger, large), (smaller, small)):
        repeated = run(base, again, tmp_path, **options | {"budget": budget})
        assert repeated.judgement.guard == expected.judgement.guard
        assert [p.key for p in repeated.picks] == [p.key for p in expected.picks]
    assert (again.measured, again.opened) == ([], 0), "no worker is started"


def test_another_sampler_begins_anew(base: CheckpointChoice, tmp_path: Path):
    """Side by side in one folder, each picks what it would have picked alone."""
    run(base, Lab(), tmp_path, **LITTLE)
    beside, alone = (run(base, Lab(), folder, sampler="strata", **LITTLE) for folder in (tmp_path, tmp_path / "alone"))
    assert {(p.task_id, p.key, p.round) for p in beside.picks} == {(p.task_id, p.key, p.round) for p in alone.picks}
    assert beside.judgement.guard == alone.judgement.guard


SMALL_RUN = {"budget": 60, "per_task": 24, "rounds": 2}


@pytest.fixture(scope="module")
def whole(base: CheckpointChoice, tmp_path_factory: pytest.TempPathFactory):
    """A run that nothing disturbs, and what it measured."""
    work, lab = tmp_path_factory.mktemp("whole"), Lab()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TCHUB_HOME", str(work / "home"))
        return run(base, lab, work, **SMALL_RUN), lab.measured


def check_resumed(base: CheckpointChoice, work: Path, first: Lab, whole) -> None:
    result, measured = whole
    rest = Lab()
    resumed = run(base, rest, work, **SMALL_RUN)
    assert not set(first.measured) & set(rest.measured), "nothing is paid for twice"
    assert sorted(first.measured + rest.measured) == sorted(measured)
    assert resumed.judgement.guard == result.judgement.guard
    assert [(p.task_id, p.key) for p in resumed.picks] == [(p.task_id, p.key) for p in result.picks]
    assert (resumed.name, resumed.version) == (result.name, result.version)


@pytest.mark.parametrize(
    ("phase", "step"),
    [("candidates", 2), ("hold-out", 2), ("round 2 of 2", 2), ("fine-tuning", 0), ("few-shot: learn", 0)],
)
def test_a_run_killed_in_any_phase_goes_on(base: CheckpointChoice, tmp_path: Path, whole, phase: str, step: int):
    lab = Lab()
    with pytest.raises(KilledError, match=phase):
        run(base, lab, tmp_path, progress=KillAt(phase, step), **SMALL_RUN)
    check_resumed(base, tmp_path, lab, whole)


def test_an_interrupted_run_goes_on(base: CheckpointChoice, tmp_path: Path, whole):
    lab = Lab(stop_after=27)
    with pytest.raises(InterruptedRunError, match="27 measured") as caught:
        run(base, lab, tmp_path, **SMALL_RUN)
    assert caught.value.exit_code == 130
    check_resumed(base, tmp_path, lab, whole)


def test_a_run_killed_while_it_stores_leaves_no_half_checkpoint(
    base: CheckpointChoice, tmp_path: Path, whole, home: Path, monkeypatch: pytest.MonkeyPatch
):
    def killed(self, name, save, *_, **__):
        save(home / "checkpoints" / name / ".half", "1.0.0")
        raise KilledError("store")

    assert whole[0].adapted, "there is something to store"
    lab = Lab()
    with monkeypatch.context() as patch:
        patch.setattr(Registry, "register_local", killed)
        with pytest.raises(KilledError):
            run(base, lab, tmp_path, **SMALL_RUN)
    check_resumed(base, tmp_path, lab, whole)
    assert Registry.default().resolve("tcl-epyc+local").entry.version == "1.0.0"
