"""Search in decision space: domains of decisions, TVM's own programs again, no repeats, the same by seed."""

import json
from collections.abc import Callable
from functools import partial
from math import inf, prod
from random import Random
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.device.candidate import trace_json
from tchub.hub.device.extensions import vector_registers
from tchub.hub.device.measure import Measurement
from tchub.hub.networks.tasks import make_task
from tchub.hub.networks.workloads import operator_module
from tchub.hub.records.store import MeasuredProgram
from tchub.hub.search import design_space
from tchub.hub.search.candidates import tune_context
from tchub.hub.search.decision_search import DecisionSearch
from tchub.hub.search.design_slots import ChoiceSlot, TileSlot, weighted
from tchub.hub.search.design_space import DesignSpace
from tchub.hub.search.dqn import DQNSearch
from tchub.hub.search.engines import TaskSearch, open_engine
from tchub.hub.search.errors import InterruptedRunError, TuningError
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.settings import DecisionSettings, DQNSettings, SearchSettings
from tchub.zoo.corpus.workloads import OperatorSpec
from tchub.zoo.devices import get_device
from tvm import te
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.analysis import estimate_tir_flops
from tvm_ffi import structural_equal, structural_hash

SMALL = DecisionSettings(random=64, generations=1, children=32, parents=8)
SMALL_DQN = DQNSettings(drawn=16, programs=16, walkers=4, episodes=3, updates=1)
BY_A_DQN = DecisionSettings(dqn=SMALL_DQN, epsilon=0.0)
EXTENTS = st.integers(1, 4096)


class ByDecisions:
    """Stands in for a watched checkpoint: the features are the decisions; unless `rank` says otherwise, large innermost
    tiles are fast. Keeps what it is taught, and the scores that it gives."""

    reads_decisions = True

    def __init__(self, rank: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        self.rank = rank or (lambda rows: rows[:, 3] + 1e-3 * rows.sum(axis=1))
        self.seen: list[tuple[np.ndarray, list[float]]] = []
        self.scores: list[float] = []

    def features_of(self, template: Any, decisions: Any) -> np.ndarray:
        rows = [[float(x) for d in row for x in (d if isinstance(d, tuple) else (d,))] for row in decisions]
        return np.array([(row + [0.0] * 16)[:16] for row in rows], np.float32)[:, None]

    def score(self, mod: Any, features: np.ndarray) -> np.ndarray:
        scores = self.rank(features[:, 0])
        self.scores += scores.tolist()
        return scores

    def intensity(self, template: Any, decisions: Any) -> np.ndarray | None:
        return None

    def observe(self, mod: Any, features: np.ndarray, latencies: list[float]) -> None:
        self.seen.append((features, latencies))


def opened(
    task: Any,
    target: Any,
    seed: int = 0,
    batch: int = 4,
    settings: DecisionSettings = SMALL,
    model: Any = None,
    roofline: Any = None,
) -> Any:
    """A search of a task that has begun: over decisions, by a DQN where the settings have one."""
    model = model or ByDecisions()
    engine = open_engine(task, target, SearchSettings(decisions=settings), seed, 1, model, roofline)
    assert type(engine.search) is (DQNSearch if settings.dqn else DecisionSearch)
    engine.search.start(64, batch, ms.database.MemoryDatabase(), model)
    return engine.search


@pytest.fixture
def search(small_task: Any, target: Any) -> Any:
    """Makes a search of the small task that has begun."""
    return partial(opened, small_task, target)


@pytest.fixture(params=[SMALL, BY_A_DQN], ids=["bred", "by a DQN"])
def each_way(request: Any) -> Any:
    """Makes a search of a task that has begun, in each of two ways."""
    return partial(opened, settings=request.param)


def keys(search: DecisionSearch, candidates: list[Any]) -> list[Any]:
    return [search._key(candidate) for candidate in candidates]


def results(latencies: list[float]) -> list[Any]:
    return [ms.runner.RunnerResult([x], None) if x < inf else ms.runner.RunnerResult(None, "x") for x in latencies]


@given(EXTENTS, st.integers(1, 5), st.sampled_from([0, 16, 64]), st.integers(0, 99))
def test_a_tile_stays_a_tile_however_it_is_varied_or_moved(extent: int, parts: int, innermost: int, seed: int) -> None:
    innermost *= parts > 1  # one level holds the whole extent, whatever the limit
    slot, rng = TileSlot(extent, parts, innermost), Random(seed)
    for tile in slot.draw(rng, 3):
        moved = list(slot.adjacent(tile))
        assert all(tile in slot.adjacent(other) for other in moved), "every move has a way back"
        for one in (tile, slot.mutate(tile, rng), *moved):
            assert (len(one), prod(one)) == (parts, extent)
            assert not innermost or one[-1] <= innermost


def test_tiles_are_drawn_uniformly_over_ordered_factorisations() -> None:
    drawn = TileSlot(12, 2).draw(Random(0), 6000)
    counts = [drawn.count((a, 12 // a)) for a in (1, 2, 3, 4, 6, 12)]
    assert sum(counts) == 6000
    assert min(counts) > 850  # 1000 each; four standard deviations are 115


def test_a_choice_is_never_one_that_cannot_be_drawn() -> None:
    slot, rng = weighted((0.5, 0.0, 0.5)), Random(0)
    assert set(slot.draw(rng, 50)) == {0, 2}
    assert {slot.mutate(0, rng) for _ in range(20)} == {2}
    assert ChoiceSlot((-1, 3)).mutate(3, rng) == -1
    assert ChoiceSlot((-1,)).mutate(-1, rng) == -1


@pytest.mark.parametrize("which", ["cpu", "gpu"])
def test_the_same_decisions_give_tvms_own_program(small_task: Any, target: Any, which: str) -> None:
    target = target if which == "cpu" else tvm.target.Target("nvidia/nvidia-t4")
    strategy = SearchSettings(8, init_min_unmeasured=2, genetic_num_iters=1, max_fail_count=100).strategy()
    context = tune_context(small_task, target, strategy, seed=3)
    schedules = context.generate_design_space()
    spaces = [DesignSpace(small_task.mod, context.space_generator.postprocs, schedule) for schedule in schedules]
    context.pre_tuning(4, 4, schedules, ms.database.MemoryDatabase(), ms.cost_model.RandomModel())
    candidates = context.generate_measure_candidates()
    assert candidates
    for candidate in candidates:
        read = [(space, space.read(trace_json(candidate.sch.trace))) for space in spaces]
        ((space, decisions),) = [(space, decisions) for space, decisions in read if decisions is not None]
        again = space.replay(decisions)
        assert structural_equal(again.sch.mod, candidate.sch.mod)
        assert list(map(str, again.args_info)) == list(map(str, candidate.args_info))
        assert space.decisions_of(again) == decisions


@pytest.mark.parametrize(
    ("options", "count", "lanes"),
    [({"mcpu": "x86-64-v2"}, 16, 4), ({"mcpu": "x86-64-v3"}, 16, 8), ({"mcpu": "znver4"}, 32, 16)],
    ids=["SSE", "AVX2", "AVX-512"],
)
def test_the_tile_of_a_product_stays_in_the_registers(options: dict[str, str], count: int, lanes: int) -> None:
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1, **options})
    registers = vector_registers(target)
    assert registers == (count, lanes)
    task = make_task(operator_module(OperatorSpec("d", "dense", {"m": 96, "n": 192, "k": 64})), "d")
    context = tune_context(task, target, "replay-trace", 0)
    schedule = context.generate_design_space()[0]
    free, bound = (
        DesignSpace(task.mod, context.space_generator.postprocs, schedule, 0, limit) for limit in (None, registers)
    )

    def needed(decisions: Any) -> int:
        """Accumulators, a row of the second factor, and one element of the first, which AVX-512 reads from memory."""
        (*_, rows), (*_, columns) = (tile for tile in decisions if isinstance(tile, tuple) and len(tile) == 4)
        return (rows + 1) * (columns // lanes) + (lanes < 16) if columns % lanes == 0 else 0

    assert any(needed(one) > count for one in free.random(Random(0), 300))
    kept = bound.random(Random(0), 300)
    assert len(kept) == 300
    assert max(map(needed, kept)) <= count
    assert len({needed(one) for one in kept}) > 5, "small tiles and large ones"
    none = DesignSpace(task.mod, context.space_generator.postprocs, schedule, 0, (0, 1))
    assert len(none.random(Random(0), 10)) == 10, "where no tile is small enough, all are searched"


def test_a_program_that_sums_a_row_for_each_of_its_numbers_is_none(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(operator_module(OperatorSpec("s", "softmax", {"rows": 4, "columns": 997})), "s")
    context = tune_context(task, target, "replay-trace", 0)
    spaces = [
        DesignSpace(task.mod, context.space_generator.postprocs, schedule)
        for schedule in context.generate_design_space()
    ]
    drawn = [(space, decisions) for space in spaces for decisions in space.random(Random(0), 12)]
    kept = [space.replay(decisions) for space, decisions in drawn]
    work = [estimate_tir_flops(one.sch.mod) for one in kept if one is not None]
    assert 0 < max(work) <= 32 * estimate_tir_flops(task.mod)
    monkeypatch.setattr(design_space, "_MOST_WORK", inf)
    free = [space.replay(decisions) for space, decisions in drawn]
    wasteful = [one for one, other in zip(free, kept, strict=True) if other is None and one is not None]
    assert wasteful
    assert min(estimate_tir_flops(one.sch.mod) for one in wasteful) > 100 * min(work)


def test_the_first_batch_is_what_the_model_likes_best(search: Any) -> None:
    tuning = search(settings=DecisionSettings(random=64, generations=1, children=32, parents=8, epsilon=0.0, apart=0.0))
    batch = tuning.candidates(4, StopFlag())
    chosen = [decisions for _, decisions in keys(tuning, batch)]
    scores = tuning._model.score(None, tuning._model.features_of(None, chosen))
    assert list(scores) == sorted(scores, reverse=True)
    drawn = tuning.spaces[0].random(Random(1), 64)
    at_random = tuning._model.score(None, tuning._model.features_of(None, drawn))
    assert scores.min() > np.quantile(at_random, 0.9)
    assert all(waiting <= scores.max() for waiting in tuning.waiting)


def test_a_part_of_a_later_batch_is_one_step_from_the_fastest_program(search: Any) -> None:
    """However the model likes it; TVM may move the decisions of some."""
    beside = []
    for walks in (0.0, 1.0):
        settings = DecisionSettings(random=64, generations=0, children=1, epsilon=0.0, walks=walks)
        tuning = search(settings=settings, model=ByDecisions(lambda rows: -rows[:, 3]))
        first = tuning.candidates(4, StopFlag())
        tuning.notify(first, results([4.0, 1.0, 2.0, 3.0]))
        number, fastest = keys(tuning, first)[1]
        near = {(number, decisions) for decisions in tuning.spaces[number].adjacent(fastest)}
        beside.append(len(near & {*keys(tuning, tuning.candidates(4, StopFlag()))}))
    assert beside[0] < 2 <= beside[1]


def test_equal_seeds_and_measurements_give_equal_programs(each_way: Any, small_task: Any, target: Any) -> None:
    rounds = []
    for seed in (5, 5, 6):
        tuning = each_way(small_task, target, seed)
        first = tuning.candidates(4, StopFlag())
        tuning.notify(first, results([4.0, 3.0, 2.0, 1.0]))
        rounds.append(keys(tuning, first) + keys(tuning, tuning.candidates(4, StopFlag())))
    assert rounds[0] == rounds[1]
    assert rounds[0] != rounds[2]


def test_no_program_is_offered_twice_not_even_under_other_decisions(
    each_way: Any, small_task: Any, target: Any
) -> None:
    tuning, modules = each_way(small_task, target), []
    for _ in range(3):
        batch = tuning.candidates(4, StopFlag())
        modules += [structural_hash(candidate.sch.mod) for candidate in batch]
        tuning.notify(batch, results([1.0, inf, 2.0, 3.0]))
    assert len(modules) == len(set(modules)) == 12


def test_a_small_space_is_searched_to_its_end(each_way: Any, target: Any) -> None:
    x = te.placeholder((2, 2), name="x")
    axis = te.reduce_axis((0, 2), name="k")
    y = te.compute((2,), lambda i: te.sum(x[i, axis], axis), name="y")
    tuning = each_way(make_task(tvm.IRModule({"main": te.create_prim_func([x, y])}), "sum"), target, batch=8)
    modules = []
    while batch := tuning.candidates(8, StopFlag()):
        modules += [structural_hash(candidate.sch.mod) for candidate in batch]
        tuning.notify(batch, results([1.0] * len(batch)))
    assert len(modules) == len(set(modules)) > 1


def test_a_stop_ends_the_search_and_where_nothing_is_valid_nothing_is_offered(
    each_way: Any, small_task: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopFlag()
    stop.request()
    with pytest.raises(InterruptedRunError):
        each_way(small_task, target).candidates(4, stop)
    monkeypatch.setattr(DesignSpace, "replay", lambda self, decisions: None)
    assert each_way(small_task, target).candidates(4, StopFlag()) == []
    assert each_way(small_task, target).unmeasured() == []


def test_programs_of_earlier_runs_are_parents_and_context_and_are_not_repeated(search: Any) -> None:
    before, tuning = search(), search()
    batch = before.candidates(4, StopFlag())
    known = [
        MeasuredProgram("t", str(i), "tune", json.dumps(trace_json(c.sch.trace)), Measurement((1e-3 * (i + 1),)))
        for i, c in enumerate(batch)
    ]
    assert tuning.teach(known) == 4
    assert tuning.teach(known) == 0
    learnt = sorted(latency for features, latencies in tuning._model.seen for latency in latencies)
    assert learnt == [1e-3, 2e-3, 3e-3, 4e-3]
    assert not set(keys(tuning, tuning.candidates(4, StopFlag()))) & set(keys(before, batch))


def test_the_engine_follows_its_name_and_the_model(small_task: Any, target: Any) -> None:
    class Blind(ByDecisions):
        reads_decisions = False

    def kind(model: Any, **settings: Any) -> type:
        return type(open_engine(small_task, target, SearchSettings(**settings), 0, 1, model).search)

    assert kind(ByDecisions(), engine="auto") is DecisionSearch
    assert kind(ByDecisions(), engine="dqn") is kind(ByDecisions(), decisions=BY_A_DQN) is DQNSearch
    assert kind(ByDecisions(), engine="metaschedule") is kind(Blind(), engine="auto") is TaskSearch
    for engine in ("decisions", "dqn"):
        with pytest.raises(TuningError):
            kind(Blind(), engine=engine)
    with pytest.raises(ValueError, match="engine"):
        SearchSettings(engine="magic")


def test_what_cannot_be_built_is_replaced_and_remembered(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning, asked = search(), []
    real = DesignSpace.replay

    def every_other(self: Any, decisions: Any) -> Any:
        asked.append(decisions)
        return real(self, decisions) if len(asked) % 2 else None

    monkeypatch.setattr(DesignSpace, "replay", every_other)
    assert len(tuning.candidates(4, StopFlag())) == 4
    refused = set(asked[1::2])
    tuning.candidates(4, StopFlag())
    assert not refused & set(asked[asked.index(asked[-1]) :]), "a refused program is not tried again"
    assert len(asked) == len(set(asked))


def test_random_programs_of_a_gpu_have_as_many_threads_as_their_schedule_allows(small_task) -> None:
    """Of all tiles of so small a product one in a hundred makes a block of 32 threads or more."""
    context = tune_context(small_task, tvm.target.Target(get_device("t4").target), "replay-trace", 0)
    (schedule,) = context.generate_design_space()
    space = DesignSpace(small_task.mod, context.space_generator.postprocs, schedule)
    drawn = space.random(Random(0), 40)
    assert len(drawn) == 40
    assert not all(map(space.fits, zip(*(slot.draw(Random(0), 40) for slot in space.slots), strict=True)))
    assert all(space.fits(decisions) for decisions in drawn)
    assert all(space.replay(decisions) is not None for decisions in drawn[:8])
