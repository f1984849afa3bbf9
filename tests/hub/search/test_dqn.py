"""Fasor's DQN: moves that stay in the space, an agent that learns what pays, a search that beats chance."""

from dataclasses import replace
from functools import partial
from math import inf, prod
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tchub.hub.search.candidates import tune_context
from tchub.hub.search.design_slots import ChoiceSlot, TileSlot, weighted
from tchub.hub.search.design_space import DesignSpace
from tchub.hub.search.dqn import DQNSearch, QAgent, Transition
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.roofline import Roofline
from tchub.hub.search.schedules import ScheduleDatabase
from tchub.hub.search.settings import DecisionSettings, DQNSettings
from test_decision_search import SMALL_DQN, ByDecisions, keys, opened, results
from test_schedules import dense, program

QUICK = DQNSettings(first_random=0.0, last_random=0.0, updates=8, sync=2, batch=16)
BEST = np.array([1, 2, 2, 8, 2, 3, 1, 4, 8, 2])


def peak() -> ByDecisions:
    """The best programs are those with these 10 factors; each doubling away from them costs."""
    return ByDecisions(lambda rows: -np.abs(np.log2(rows[:, :10] / BEST)).sum(axis=1))


@pytest.fixture
def search(small_task: Any, target: Any) -> Any:
    """Makes a search of the small task that has begun."""
    return partial(by_dqn, small_task, target)


def by_dqn(task: Any, target: Any, dqn: DQNSettings = SMALL_DQN, model: Any = None, **options: Any) -> DQNSearch:
    settings = DecisionSettings(dqn=dqn, epsilon=0.0)
    return opened(task, target, settings=settings, model=model or ByDecisions(), **options)


def test_a_move_of_another_decision_goes_to_the_value_before_or_after() -> None:
    assert list(weighted((0.3, 0.0, 0.3, 0.4)).adjacent(2)) == [0, 3], "not one that is never drawn"
    assert list(weighted((0.5, 0.5)).adjacent(1)) == [0]
    numbers = ChoiceSlot((-1, 10, 2))
    assert list(numbers.adjacent(2)) == [-1, 10]
    assert list(numbers.adjacent(5)) == [2, 10], "of a similar task, where it was another value"
    assert list(ChoiceSlot(((4, 2), (2, 4))).adjacent((2, 4))) == [(4, 2)]
    assert list(TileSlot(4, 2).adjacent(3)) == []


@pytest.mark.parametrize("which", ["cpu", "gpu"])
def test_every_program_a_move_away_is_one_of_tvms(small_task: Any, target: Any, which: str) -> None:
    target = target if which == "cpu" else tvm.target.Target("nvidia/nvidia-t4")
    context = tune_context(small_task, target, "replay-trace", 0)
    space = DesignSpace(small_task.mod, context.space_generator.postprocs, context.generate_design_space()[0])
    (start,) = space.random(Random(0), 1)
    moved = list(space.adjacent(start))
    assert len(moved) == len(set(moved)) > 4
    assert all(sum(a != b for a, b in zip(start, other, strict=True)) == 1 for other in moved)
    assert all(space.replay(other) is not None for other in moved[::5])
    assert space.numbers == sum(len(d) if isinstance(d, tuple) else 1 for d in start)


NONE = np.zeros((0, 2), np.float32)


def test_an_agent_learns_which_action_pays() -> None:
    agent, rows = QAgent(2, replace(QUICK, memory=40), 0), np.eye(2, dtype=np.float32)
    for worth in (1.0, -1.0):  # also once it has learnt the contrary
        for _ in range(40):
            agent.remember(Transition(rows[0], worth, NONE))
            agent.remember(Transition(rows[1], -worth, NONE))
            agent.learn()
        assert agent.choose(rows) == int(worth < 0)


@pytest.mark.parametrize(("discount", "best"), [(0.95, 0), (0.0, 1)], ids=["patient", "greedy"])
def test_a_reward_that_comes_later_counts_as_far_as_it_is_discounted(discount: float, best: int) -> None:
    agent = QAgent(2, replace(QUICK, discount=discount), 0)
    leads_on, pays, costs, at_once = np.array([[1, 0], [1, 1], [-1, -1], [0, 1]], np.float32)
    for _ in range(60):
        agent.remember(Transition(leads_on, 0.0, np.stack([pays, costs])))
        agent.remember(Transition(pays, 1.0, NONE))
        agent.remember(Transition(costs, -1.0, NONE))
        agent.remember(Transition(at_once, 0.5, NONE))
        agent.learn()
    assert agent.choose(np.stack([leads_on, at_once])) == best


def test_an_agent_leaves_the_random_numbers_of_torch_alone() -> None:
    before = torch.random.get_rng_state()
    first, same, other = (next(QAgent(2, QUICK, seed)._network.parameters()) for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_no_program_is_scored_twice(search: Any) -> None:
    tuning = search()
    for _ in range(3):
        pool = tuning._walked(2, SMALL_DQN.quality, StopFlag())
        assert len(pool.keys) == len(set(pool.keys)) == len(pool.scores) == len(pool.features)
        assert not set(pool.keys) & set(tuning.latencies)
        tuning.notify(tuning.candidates(4, StopFlag()), results([1.0, inf, 2.0, 3.0]))


def test_a_known_optimum_is_met_sooner_than_by_chance(search: Any) -> None:
    walks = DQNSettings(drawn=16, episodes=30, patience=30)
    model = peak()
    search(dqn=walks, model=model).candidates(1, StopFlag())
    tiles = prod(slot.choices for slot in search().spaces[0].slots[:3])
    assert model.scores.index(0.0) < 1000 < tiles / 20, "a random search needs half of the tiles on average"


def test_what_was_learnt_is_worth_more_than_random_moves(search: Any) -> None:
    """Of equally many programs, near the optimum or not: the mean score of where the walkers went."""

    def mean_score(**options: Any) -> float:
        walks = DQNSettings(drawn=16, programs=128, patience=9, **options)
        pool = search(dqn=walks, model=peak())._walked(6, (1.0, 0.0, 0.0), StopFlag())
        return float(pool.scores[18:].mean())

    assert mean_score() > mean_score(first_random=1.0, last_random=1.0) + 1.0, "doublings from the optimum"


def test_the_next_round_walks_from_the_fastest_programs(search: Any) -> None:
    tuning = search(dqn=replace(SMALL_DQN, walkers=1, programs=1, episodes=1))
    batch = tuning.candidates(4, StopFlag())
    tuning.notify(batch, results([4.0, inf, 1.0, 2.0]))
    by_score = tuning._measured()
    chosen = keys(tuning, batch)
    assert sorted(by_score, key=by_score.__getitem__) == [chosen[0], chosen[3], chosen[2]], "failed ones have no time"
    scores = tuning._pool(by_score).scores
    assert sorted(by_score.values()) == sorted(map(float, scores)), "on the scale of the model's scores"


def test_without_measurements_an_episode_from_the_schedule_of_a_similar_task(small_task: Any, target: Any) -> None:
    other = dense(64, 48, 32)
    before = by_dqn(other, target)
    (best,) = before.candidates(1, StopFlag())
    model = ByDecisions()
    tuning = by_dqn(small_task, target, replace(SMALL_DQN, walkers=2, programs=64), model)
    tuning.suggest(ScheduleDatabase([program(other, best, 1e-3)]))
    spaces = len(tuning.carried)
    (chosen,) = tuning.unmeasured()
    asked = list(model.scores)
    assert len(asked) == spaces + 6 * spaces + 64, "the schedule, random programs, and the paper's 64"
    assert asked[0] in tuning._pool(tuning.carried).scores
    (key,) = keys(tuning, [chosen])
    assert tuning._pool([key]).scores[0] >= 0.9 * max(asked), "the best that TVM takes"


def test_the_share_of_the_roofline_is_the_machines(search: Any) -> None:
    def shares(roofline: Roofline | None, on: bool = True) -> tuple[DQNSearch, list[float]]:
        tuning = search(replace(SMALL_DQN, roofline=on), roofline=roofline)
        programs = [(0, decisions) for decisions in tuning.spaces[0].random(Random(0), 20)]
        return tuning, [tuning._shares(programs)[key] for key in programs]

    slow, values = shares(Roofline(flops=8e9, bandwidth=1e9))
    assert slow._dqn.ridge == 8.0
    assert 0 < min(values) < max(values) <= 1
    _, half = shares(Roofline(flops=16e9, bandwidth=1e9))
    assert all(b == pytest.approx(a / 2) for a, b in zip(values, half, strict=True) if a < 1)
    assert shares(None)[0]._dqn.ridge == DQNSettings().ridge
    assert set(shares(None, on=False)[1]) == {0.0}
