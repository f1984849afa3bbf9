"""Held-out networks never meet the training, and shares add up."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.apportion import apportion, apportion_capped
from tchub.zoo.corpus import HELD_OUT, OPS, Corpus, Split, Task, metric_weight, split_tasks
from tchub.zoo.corpus.workloads import HELD_OUT_NETWORKS, TRAIN_NETWORKS

NAMES = [spec.name for spec in (*HELD_OUT_NETWORKS, *TRAIN_NETWORKS)]

tasks_strategy = st.lists(
    st.tuples(st.sampled_from(OPS), st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9), max_size=3)),
    max_size=60,
)


def corpus_of(rows) -> Corpus:
    tasks = {
        f"{i:016x}": Task(f"{i:016x}", f"t{i}", op, 1.0, str(i), networks=tuple(networks.items()))
        for i, (op, networks) in enumerate(rows)
    }
    return Corpus(Path("."), {}, tasks)


@given(tasks_strategy, st.integers(0, 3))
def test_every_task_is_in_one_part_and_held_out_tasks_only_in_test(rows, seed):
    corpus = corpus_of(rows)
    split = split_tasks(corpus, seed)
    assert sorted((*split.train, *split.val, *split.test)) == sorted(corpus.tasks)
    assert {t for t in corpus.tasks if set(dict(corpus.tasks[t].networks)) & set(HELD_OUT)} == set(split.test)
    assert split == split_tasks(corpus, seed)


def test_validation_is_a_tenth_of_the_tasks_and_follows_the_operator_types():
    corpus = corpus_of([("conv2d", {"resnet-18": 1})] * 60 + [("matmul", {"vit-tiny": 1})] * 40)
    split = split_tasks(corpus)
    ops = [corpus.tasks[t].op for t in split.val]
    assert (ops.count("conv2d"), ops.count("matmul")) == (6, 4)
    assert split_tasks(corpus, seed=1).val != split.val


def test_an_operator_type_with_one_task_stays_in_training():
    corpus = corpus_of([(op, {"resnet-18": 1}) for op in OPS])
    assert split_tasks(corpus).val == ()


def test_the_metric_counts_occurrences_in_held_out_networks():
    shared = Task("0" * 16, "t", "conv2d", 1.0, "", networks=(("resnet-50", 3), ("resnet-18", 5), ("bert-base", 2)))
    assert metric_weight(shared) == 5
    assert metric_weight(Task("0" * 16, "t", "conv2d", 1.0, "", networks=(("resnet-18", 5),))) == 5
    assert metric_weight(Task("0" * 16, "t", "conv2d", 1.0, "")) == 1


def test_parts_have_names():
    split = Split(("a",), ("b",), ("c",))
    assert (split.part("train"), split.part("val"), split.part("test")) == (("a",), ("b",), ("c",))


weights_strategy = st.dictionaries(st.text(max_size=3), st.floats(0.01, 100), min_size=1, max_size=12)


@given(st.integers(0, 500), weights_strategy)
def test_shares_sum_to_the_total_and_stay_within_one_of_the_exact_share(total, weights):
    shares = apportion(total, weights)
    assert sum(shares.values()) == total
    mass = sum(weights.values())
    for key, units in shares.items():
        assert math.floor(total * weights[key] / mass - 1e-9) <= units <= math.ceil(total * weights[key] / mass + 1e-9)


@given(st.integers(0, 500), weights_strategy, st.data())
def test_capped_shares_fill_up_without_passing_a_cap(total, weights, data):
    caps = {key: data.draw(st.integers(0, 50)) for key in weights}
    shares = apportion_capped(total, weights, caps)
    assert sum(shares.values()) == min(total, sum(caps.values()))
    assert all(shares[key] <= caps[key] for key in weights)


@pytest.mark.parametrize(("total", "weights"), [(-1, {"a": 1}), (3, {}), (3, {"a": 0}), (3, {"a": 2, "b": -1})])
def test_shares_of_nothing_are_an_error(total, weights):
    with pytest.raises(ValueError, match="apportion"):
        apportion(total, weights)
