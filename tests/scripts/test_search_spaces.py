"""Spaces that are measured whole, and searches whose programs are looked up there."""

import json
from functools import partial
from math import ceil, isfinite
from random import Random
from typing import Any

import numpy as np
import pytest
import tvm
from tchub.hub.api import load
from tchub.hub.networks.tasks import make_task
from tchub.hub.search.design_slots import TileSlot, weighted
from tchub.hub.search.schedules import ScheduleDatabase
from tchub.hub.search.settings import DQNSettings
from tchub.zoo.corpus import Corpus, split_tasks

from scripts.benchmarks.spaces.lookup import GridSlot, MeasuredSpace, MeasuredTask, read_tasks
from scripts.benchmarks.spaces.measure import TASKS, grid, spaces_of, values_of
from scripts.benchmarks.spaces.run import OTHERS, REPLAYED, SPACES, SYSTEMS, Replay, sensitivity


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.open(SPACES)


@pytest.fixture(scope="module")
def tasks(corpus: Corpus) -> list[MeasuredTask]:
    """Return the smallest of each number of decisions."""
    every = sorted(read_tasks(corpus), key=lambda task: sum(len(space.latencies) for space in task.spaces))
    return list({len(next(iter(task.spaces[0].latencies))): task for task in reversed(every)}.values())


@pytest.fixture(scope="module")
def known(corpus: Corpus) -> tuple[Any, ScheduleDatabase, dict[str, np.ndarray]]:
    """Return a checkpoint, schedules, and how much decisions matter, of other networks."""
    others = Corpus.open(OTHERS)
    database = ScheduleDatabase.pretuned(corpus.meta["target"])
    return load(REPLAYED), database, sensitivity(others, split_tasks(others).val)


def test_all_answers_of_an_instruction_are_found() -> None:
    assert len(values_of(TileSlot(24, 3))) == 10 * 3, "2 ** 3 in 10 ways, 3 in 3"
    assert len(values_of(TileSlot(24, 2, innermost=6))) == 5, "6, 4, 3, 2 and 1"
    assert sorted(values_of(weighted((0.5, 0.0, 0.5)))) == [0, 2]


def test_a_grid_has_all_combinations_of_the_values_of_the_fastest() -> None:
    programs = grid([((4, 1), 0), ((2, 2), 0), ((2, 2), 3), ((1, 4), 5)], 6)
    assert programs[0] == ((4, 1), 0)
    assert set(programs) == {(tile, n) for tile in ((4, 1), (2, 2), (1, 4)) for n in (0, 3)}, "5 would make it 9"


def test_neighbours_in_a_grid_are_the_nearest_tiles() -> None:
    slot = GridSlot(((16, 1), (8, 2), (2, 8), (1, 16)))
    assert list(slot.adjacent((16, 1))) == [(8, 2)]
    assert list(slot.adjacent((8, 2))) == [(16, 1)]
    assert list(GridSlot((0, 1, 3)).adjacent(3)) == [1]
    assert list(GridSlot((5,)).adjacent(5)) == []


def test_the_corpus_holds_the_programs_of_todays_design_spaces(corpus: Corpus) -> None:
    """And no task that a checkpoint has learnt from."""
    assert len(corpus.tasks) == TASKS
    target: Any = tvm.target.Target(corpus.meta["target"])
    assert {schedule.task_id for _, schedule in ScheduleDatabase.pretuned(target)}.isdisjoint(corpus.tasks)
    for task_id in sorted(corpus.tasks)[:2]:
        spaces = spaces_of(make_task(tvm.ir.load_json(corpus.tasks[task_id].workload), task_id), target)
        traces = [json.loads(program.trace) for program in corpus.programs(task_id)]
        assert all(any(space.read(trace) is not None for space in spaces) for trace in traces)


def test_a_space_consists_of_its_programs(tasks: list[MeasuredTask]) -> None:
    recorded = tasks[-1].spaces[0]
    space, rng = MeasuredSpace(recorded), Random(0)
    assert set(space.random(rng, len(recorded.latencies))) == set(recorded.latencies)
    assert all(space.carry_over(one) == one for one in space.random(rng, 8)), "each is the nearest to itself"


def test_a_narrow_space_varies_half_of_its_decisions(tasks: list[MeasuredTask]) -> None:
    recorded = tasks[-1].spaces[0]
    space, first = MeasuredSpace(recorded), next(iter(recorded.latencies))
    varying = [number for number, slot in enumerate(space.slots) if slot.choices > 1]
    space.narrow(first, np.arange(len(first)))
    drawn = space.random(Random(0), 256)
    searched = varying[-ceil(len(varying) / 2) :]
    assert {number for number in varying if len({one[number] for one in drawn}) > 1} <= {*searched}
    assert len(drawn) > 1
    space.widen()
    assert len({one[varying[0]] for one in space.random(Random(0), 256)}) > 1


@pytest.mark.parametrize(
    "name", ["random", "xgb", "+ subspace", "+ few-shot", "dqn, random subspace", "dqn, no roofline", "annealing"]
)
def test_each_system_searches_for_as_long_as_it_may(
    name: str, tasks: list[MeasuredTask], known: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it finds is in the benchmark."""
    monkeypatch.setattr("scripts.benchmarks.spaces.run.DQNSettings", partial(DQNSettings, episodes=2, updates=1))
    budget = 4 * len(tasks)
    replay = Replay(tasks, SYSTEMS[name], 0, budget, *known)
    curve = replay.curve()
    assert len(curve) == budget + 1
    assert all(isfinite(latency) and latency >= 1 for latency in curve)
    assert replay.searching > 0 < replay.measuring


def test_each_task_has_a_program_without_measuring(tasks: list[MeasuredTask], known: Any) -> None:
    ratios = Replay(tasks, SYSTEMS["today + database"], 0, 1, *known).unmeasured()
    assert len(ratios) == len(tasks)
    assert all(isfinite(ratio) and ratio >= 1 for ratio in ratios)


def test_decisions_that_matter_are_those_that_latency_follows(known: Any) -> None:
    shares = [share for own in known[2].values() for share in own]
    assert all(-1e-9 <= share <= 1 for share in shares)
    assert max(shares) > 0.2
