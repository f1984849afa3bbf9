"""Schedules carried over from similar tasks: tiles that suit the new extents, and the first programs of a search."""

from __future__ import annotations

import json
from math import inf, prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.device.candidate import trace_json
from tchub.hub.search.decision_search import DecisionSearch
from tchub.hub.search.design_slots import rescale
from tchub.hub.search.engines import open_engine
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.schedules import LEAST_SIMILARITY, ScheduleDatabase, distance, similarity
from tchub.hub.search.settings import SearchSettings
from test_decision_search import SMALL, ByDecisions
from tvm.s_tir import meta_schedule as ms


def dense(m: int, n: int, k: int) -> Any:
    """The matrix product of m x k and k x n."""
    from tchub.hub.networks.tasks import make_task
    from tchub.hub.networks.workloads import operator_module
    from tchub.zoo.corpus.workloads import OperatorSpec

    return make_task(operator_module(OperatorSpec("other", "dense", {"m": m, "n": n, "k": k})), "other")


def opened(task: Any, target: Any, seed: int = 0) -> DecisionSearch:
    engine = open_engine(task, target, SearchSettings(decisions=SMALL), seed, 1, ByDecisions())  # type: ignore[arg-type]
    assert isinstance(engine.search, DecisionSearch)
    engine.search.start(64, 4, ms.database.MemoryDatabase(), ByDecisions())
    return engine.search


def program(task: Any, candidate: Any, latency: float) -> tuple[str, str, float]:
    return task.task_id, json.dumps(trace_json(candidate.sch.trace)), latency


TILES = st.lists(st.sampled_from([1, 2, 3, 4, 8, 16, 64]), min_size=1, max_size=5)


@given(TILES, st.integers(1, 4096), st.sampled_from([0, 16, 64]))
def test_a_rescaled_tile_has_the_new_extent(tile: list[int], extent: int, innermost: int) -> None:
    new = rescale(tile, extent, innermost if len(tile) > 1 else 0)
    assert prod(new) == extent
    assert len(new) == len(tile)
    assert rescale(new, extent, 0) == new, "what fits already stays"
    assert not innermost or len(tile) == 1 or new[-1] <= innermost


@pytest.mark.parametrize(
    ("tile", "extent", "new"),
    [
        ((4, 2, 8), 256, (16, 2, 8)),  # the outermost factor takes what is left
        ((2, 16), 24, (2, 12)),
        ((8, 32), 144, (9, 16)),  # 36 is nearer, but no power of two
        ((1, 7, 4), 49, (1, 7, 7)),
        ((2, 2, 3), 8, (1, 2, 4)),
    ],
)
def test_inner_factors_stay_as_far_as_they_divide(tile: Any, extent: int, new: Any) -> None:
    assert rescale(tile, extent) == new


def test_extents_in_another_order_are_another_task() -> None:
    assert similarity((56, 56, 64), (28, 28, 128)) == pytest.approx(1.0)
    assert similarity((56, 64, 128), (128, 64, 56)) < LEAST_SIMILARITY
    assert similarity((4, 4), (8, 16)) == 1.0
    assert distance((56, 64), (28, 128)) == 2.0


def test_a_search_begins_with_the_schedule_of_the_most_similar_task(small_task: Any, target: Any) -> None:
    """Of a product twice as large in one dimension, whose fastest program is at hand; slower ones do not count."""
    near, far = dense(64, 24, 16), dense(512, 384, 256)
    programs = []
    for number, task in enumerate((near, far)):
        fast, slow, failed = opened(task, target, number).candidates(3, StopFlag())
        programs += [program(task, slow, 2e-3), program(task, fast, 1e-3), program(task, failed, inf)]
    schedules = ScheduleDatabase(programs)
    assert len(schedules) == 2
    search = opened(small_task, target)
    search.suggest(schedules)
    (space,) = {number for number, _ in search.carried[:1]}
    of_space = schedules.similar(search.spaces[space].kernel, search.spaces[space].extents)
    assert of_space[0][1].task_id == near.task_id
    assert of_space[0][1].latency == 1e-3
    expected = {search._replay(key, search._scheduled(key), 0.0, True).key for key in search.carried}  # type: ignore[union-attr]
    search = opened(small_task, target)
    search.suggest(schedules)
    (first,) = search.candidates(1, StopFlag())
    assert search._key(first) in expected
    search.notify([first], [ms.runner.RunnerResult([1e-3], None)])
    assert len(search.candidates(4, StopFlag())) == 4, "then the model chooses"


def test_a_schedule_of_another_design_is_left_out(small_task: Any, target: Any) -> None:
    search = opened(small_task, target)
    instructions = [["SamplePerfectTile", ["l0"], [2, 64], ["v0", "v1"]]]
    search.suggest(ScheduleDatabase([("t", json.dumps([instructions, [[0, [4, 8]]]]), 1e-3)]))
    assert search.carried == []


def test_the_schedules_in_the_wheel_are_those_of_the_corpora_and_of_no_network_that_is_held_out() -> None:
    from tchub.zoo.corpus import Corpus, split_tasks

    from scripts.benchmarks.common import ROOT
    from scripts.zoo.schedules import FAMILIES, fastest

    for family, devices in FAMILIES.items():
        corpora = [[Corpus.open(ROOT / "corpora" / name) for name in names] for names in devices]
        shipped = {schedule.task_id: schedule for _, schedule in ScheduleDatabase.pretuned(family)}
        assert shipped == {schedule.task_id: schedule for _, schedule in fastest(corpora)}
        assert not shipped.keys() & {task for own in corpora for corpus in own for task in split_tasks(corpus).test}
    assert len(ScheduleDatabase.pretuned("graviton")) == 0, "a family without a corpus has none"


def test_programs_of_this_machine_take_the_place_of_the_wheels() -> None:
    (kernel, shipped), *_ = ScheduleDatabase.pretuned("epyc")
    own = ScheduleDatabase([(shipped.task_id, "[[],[]]", 1e-6)], ScheduleDatabase.pretuned("epyc"))
    assert len(own) == len(ScheduleDatabase.pretuned("epyc"))
    assert [schedule.latency for _, schedule in own if schedule.task_id == shipped.task_id] == [1e-6]
    assert shipped not in [schedule for name, schedule in own if name == kernel]
