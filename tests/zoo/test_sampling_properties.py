"""What every sampler keeps, whatever the pool, the labels and the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling_kit import full_view, make_pool
from tchub.zoo.adapt.errors import SamplingError
from tchub.zoo.adapt.sampling import SAMPLERS, Pool, create_sampler, op_budgets, task_budgets

ask_the_model = [name for name in SAMPLERS if name not in ("random", "stratified")]
share_by_type = ["rdu", "rdu+", "strata"]

pools = st.builds(
    make_pool,
    st.lists(st.sampled_from(["conv2d", "matmul", "softmax", "pool"]), min_size=1, max_size=8),
    st.integers(1, 6),
)


@pytest.mark.parametrize("name", SAMPLERS)
@settings(max_examples=25, deadline=None)
@given(pools, st.integers(1, 60), st.integers(0, 6), st.integers(0, 99))
def test_picks_are_distinct_unlabeled_and_exactly_as_many_as_asked(name, pool, k, known, seed):
    rng = np.random.default_rng(seed)
    labeled = rng.choice(len(pool), min(known, len(pool) - 1), replace=False)
    picked = create_sampler(name).select(pool, labeled, k, full_view(pool, labeled, seed), rng, round=3)
    places = picked.indices.tolist()
    assert len(places) == min(k, len(pool) - len(labeled))
    assert len(set(places)) == len(places)
    assert not set(places) & set(labeled.tolist())
    assert [r.index for r in picked.reasons] == places
    assert {(r.round, r.op) for r in picked.reasons} <= {(3, op) for op in pool.ops}


def picks(name: str, seed: int) -> list[int]:
    pool = make_pool(["conv2d", "matmul", "pool"] * 5, 20)
    labeled = np.arange(0, 300, 25)
    view = full_view(pool, labeled, 1)
    return create_sampler(name).select(pool, labeled, 40, view, np.random.default_rng(seed)).indices.tolist()


@pytest.mark.parametrize("name", SAMPLERS)
def test_one_seed_gives_one_choice(name):
    assert picks(name, 0) == picks(name, 0)


@pytest.mark.parametrize("name", ["random", "stratified", "fasor"])
def test_where_chance_decides_another_seed_gives_another_choice(name):
    assert picks(name, 0) != picks(name, 1)


@pytest.mark.parametrize("name", SAMPLERS)
def test_without_a_model_every_sampler_chooses_all_the_same(name):
    pool = make_pool(["conv2d", "matmul"], 30)
    picked = create_sampler(name).select(pool, [], 20, None, np.random.default_rng(0))
    assert len(set(picked.indices.tolist())) == 20


@pytest.mark.parametrize("name", SAMPLERS)
def test_nothing_to_pick_is_an_error(name):
    pool = make_pool(["conv2d"], 3)
    for empty, labeled in ((Pool(np.empty(0, np.int64), ()), []), (pool, [0, 1, 2])):
        with pytest.raises(SamplingError, match="nothing to pick"):
            create_sampler(name).select(empty, labeled, 2, None, np.random.default_rng(0))
    with pytest.raises(SamplingError):
        create_sampler(name).select(pool, [], 0, None, np.random.default_rng(0))


@pytest.mark.parametrize("name", ask_the_model)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_predictions_that_are_not_numbers_are_refused(name, wrong):
    pool = make_pool(["conv2d", "matmul"], 3)
    view = full_view(pool, [0], scores=[0.0, wrong, 1.0, 2.0, 3.0, 4.0])
    with pytest.raises(SamplingError, match="not finite"):
        create_sampler(name).select(pool, [0], 2, view, np.random.default_rng(0))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("latency", [np.full(4, np.nan), np.full(4, 1e-3), np.array([np.nan, 1e-3, np.inf, 2e-3])])
def test_labels_that_failed_or_are_all_alike_do_not_stop_a_sampler(name, latency):
    pool = make_pool(["conv2d", "matmul"], 10)
    view = full_view(pool, [0, 1, 10, 11], latency=latency)
    picked = create_sampler(name).select(pool, [0, 1, 10, 11], 5, view, np.random.default_rng(0))
    assert len(picked.indices) == 5


@pytest.mark.parametrize("name", SAMPLERS)
def test_constant_scores_and_embeddings_still_give_a_whole_batch(name):
    pool = make_pool(["conv2d"] * 4, 10)
    view = full_view(pool, [0, 9], scores=np.zeros(40))
    view.embeddings()[:] = 1.0
    picked = create_sampler(name).select(pool, [0, 9], 12, view, np.random.default_rng(0))
    assert len(set(picked.indices.tolist())) == 12


@pytest.mark.parametrize("name", share_by_type)
def test_every_operator_type_gets_its_share(name):
    pool = make_pool(["conv2d"] * 6 + ["matmul"] * 3 + ["pool"], 20)
    view = full_view(pool, [0])
    picked = create_sampler(name).select(pool, [0], 49, view, np.random.default_rng(0))
    assert Counter(r.op for r in picked.reasons) == {"conv2d": 29, "matmul": 15, "pool": 5}


@pytest.mark.parametrize("name", share_by_type)
def test_a_budget_smaller_than_the_operator_types_reaches_them_all_over_the_rounds(name):
    pool, rng = make_pool(["conv2d", "matmul", "softmax", "pool", "norm", "reduce"], 10), np.random.default_rng(0)
    labeled: list[int] = [0]
    for number in range(1, 6):
        view = full_view(pool, labeled, number)
        labeled += create_sampler(name).select(pool, labeled, 1, view, rng, round=number).indices.tolist()
    assert {pool.op(i) for i in labeled} == set(pool.ops)


@settings(max_examples=40, deadline=None)
@given(pools, st.integers(1, 40), st.integers(0, 9))
def test_a_types_tasks_share_its_budget_evenly(pool, k, seed):
    budgets = task_budgets(pool, [], k, np.random.default_rng(seed))
    assert budgets.sum() == min(k, len(pool))
    for op, units in op_budgets(pool, [], min(k, len(pool))).items():
        of_type = budgets[[own == op for own in pool.ops]]
        assert of_type.sum() == units
        assert np.ptp(of_type) <= 1


def test_rdu_plus_keeps_tasks_level_that_are_to_be_ranked_themselves():
    pool = replace(make_pool(["conv2d"] * 30, 40), to_rank=True)
    picked = create_sampler("rdu+").select(pool, [0], 59, full_view(pool, [0]), np.random.default_rng(0))
    assert set(pool.counts([0, *picked.indices])) == {2}


def test_alt_takes_the_least_sure_and_balto_does_not_take_twins():
    """Four twins are the least sure; one label tells all four."""
    pool = make_pool(["conv2d"], 40)
    view = full_view(pool, [0, 1, 2, 3, 4, 5])
    view.embeddings()[36:] = 4.0
    alt, balto = (
        set(create_sampler(name).select(pool, np.arange(6), 4, view, np.random.default_rng(0)).indices.tolist())
        for name in ("alt", "balto")
    )
    assert alt == {36, 37, 38, 39}
    assert len(balto & alt) < 4


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60))
def test_balto_takes_no_program_twice_in_any_chunk(n, k):
    pool = make_pool(["conv2d"], n + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tchub.zoo.adapt.sampling.active._CHUNK", 8)
        view = full_view(pool, [n])
        picked = create_sampler("balto").select(pool, [n], k, view, np.random.default_rng(0)).indices.tolist()
    assert len(set(picked)) == len(picked) == min(k, n)


def test_rdu_plus_knows_what_a_pick_of_the_same_batch_will_teach():
    pool = make_pool(["conv2d"], 40)
    view = full_view(pool, [0, 1, 2, 3, 4, 5], scores=np.zeros(40))
    view.embeddings()[36:] = 4.0
    picked = create_sampler("rdu+").select(pool, np.arange(6), 6, view, np.random.default_rng(0))
    assert len({36, 37, 38, 39} & set(picked.indices.tolist())) < 4


def test_fasor_spends_on_tasks_that_are_unlike_each_other():
    """Tasks 0 to 8 are one kind, 9 and 10 are two others: three tasks suffice."""
    from tchub.zoo.adapt.sampling import FasorSampler

    ramp = np.arange(8.0)
    kinds = np.stack([ramp] * 9 + [-ramp, np.abs(ramp - 3.4)])
    pool = Pool(np.repeat(np.arange(11), 20), ("conv2d",) * 11, task_features=kinds)
    picked = FasorSampler(tasks=3).select(pool, [], 30, None, np.random.default_rng(0))
    chosen = Counter(pool.task[picked.indices].tolist())
    assert {9, 10} < set(chosen)
    assert set(chosen.values()) == {10}


def test_fasor_keeps_its_tasks_over_the_rounds():
    """Of tasks with many programs a few describe each: another few, and others would be unlike each other."""
    pool = make_pool(["conv2d"] * 30, 80)
    labeled: list[int] = []
    for number in range(4):
        view, chance = full_view(pool, labeled), np.random.default_rng([5, number])
        labeled += create_sampler("fasor").select(pool, labeled, 40, view, chance, round=number).indices.tolist()
        assert len(np.unique(pool.task[labeled])) == 10


def test_fasor_goes_on_to_further_tasks_when_the_chosen_ones_are_used_up():
    pool = Pool(np.repeat(np.arange(4), 5), ("conv2d",) * 4, task_features=np.random.default_rng(0).random((4, 6)))
    from tchub.zoo.adapt.sampling import FasorSampler

    picked = FasorSampler(tasks=1).select(pool, [], 12, None, np.random.default_rng(0))
    assert len(np.unique(pool.task[picked.indices])) == 3


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 50), st.integers(1, 50))
def test_rdu_plus_picks_one_program_of_each_even_part_of_the_scores(n, k):
    pool, scores = make_pool(["conv2d"], n + 1), -np.arange(n + 1.0)
    view = full_view(pool, [n], scores=scores)
    ranks = create_sampler("rdu+").select(pool, [n], k, view, np.random.default_rng(0)).indices.tolist()
    parts = np.array_split(np.arange(n), min(k, n))
    assert all(rank in part for rank, part in zip(ranks, parts, strict=True))


@settings(max_examples=40, deadline=None)
@given(pools, st.integers(1, 40), st.integers(1, 5), st.integers(0, 9), st.integers(0, 9))
def test_in_blocks_a_type_has_one_block_at_most_that_is_begun_and_not_filled(pool, k, block, known, seed):
    assume(len(pool) > 1)
    rng = np.random.default_rng(seed)
    first = task_budgets(pool, [], min(known + 1, len(pool) - 1), rng, block)
    labeled = np.concatenate([np.flatnonzero(pool.task == task)[:n] for task, n in enumerate(first)]).astype(int)
    told = pool.counts(labeled) + task_budgets(pool, labeled, k, rng, block)
    size = len(pool) // len(pool.ops)
    for op in set(pool.ops):
        of_type = told[[own == op for own in pool.ops]]
        begun = (of_type % block > 0) & (of_type < size)
        assert begun.sum() <= 1
        assert np.ptp(of_type) <= block, "no task has two blocks before each has one"


def test_rdu_plus_fills_the_tasks_that_chance_began_before_it_begins_others():
    pool = make_pool(["conv2d"] * 30, 40)
    labeled = np.flatnonzero(np.isin(pool.task, [3, 8]))[::8]
    picked = create_sampler("rdu+").select(pool, labeled, 38, full_view(pool, labeled), np.random.default_rng(0))
    counts = pool.counts(np.concatenate([labeled, picked.indices]))
    assert (counts[3], counts[8]) == (16, 16)
    assert sorted(counts[counts > 0].tolist()) == [16, 16, 16]


@given(st.integers(2, 40), st.integers(1, 12), st.integers(0, 99))
def test_strata_takes_one_program_of_each_part_of_the_scores(n, k, seed):
    pool = make_pool(["conv2d"], n)
    scores = np.random.default_rng(seed).permutation(n).astype(float)
    picked = create_sampler("strata").select(
        pool, [], k, full_view(pool, [], scores=scores), np.random.default_rng(seed)
    )
    ranks = sorted(scores[picked.indices].astype(int).tolist())
    parts = np.array_split(np.arange(n), min(k, n))
    assert all(rank in part for rank, part in zip(ranks, parts, strict=True))
