"""Held-out networks never meet the training, and shares add up."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.apportion import apportion
from tchub.zoo.corpus import HELD_OUT, Corpus, CorpusError, Task, check_leaks, metric_weight, split_tasks
from tchub.zoo.corpus.workloads import HELD_OUT_NETWORKS, TRAIN_NETWORKS
from tchub.zoo.features.columns import OPS

NAMES = [spec.name for spec in (*HELD_OUT_NETWORKS, *TRAIN_NETWORKS)]

tasks_strategy = st.lists(
    st.tuples(st.sampled_from(OPS), st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9), max_size=3)), max_size=60
)


def task_of(text: str, op: str = "conv2d", task_id: str | None = None, networks=()) -> Task:
    task_id = task_id or hashlib.sha256(text.encode()).hexdigest()[:16]
    return Task(task_id, text, op, 1.0, task_id, computation=text, networks=tuple(networks))


def corpus_of(tasks: list[Task], **meta) -> Corpus:
    return Corpus(Path("."), meta, {task.task_id: task for task in tasks})


@given(tasks_strategy)
def test_every_task_is_in_one_part_and_held_out_tasks_only_in_test(rows):
    corpus = corpus_of([task_of(f"t{i}", op, networks=networks.items()) for i, (op, networks) in enumerate(rows)])
    split = split_tasks(corpus)
    assert sorted((*split.train, *split.val, *split.test)) == sorted(corpus.tasks)
    held_out = {t for t in corpus.tasks if set(dict(corpus.tasks[t].networks)) & set(HELD_OUT)}
    assert not held_out or held_out == set(split.test)
    assert split == split_tasks(corpus)


def test_the_parts_of_the_corpus_that_ships_are_those_that_the_published_scores_are_of():
    split = split_tasks(Corpus.open(Path(__file__).parents[3] / "corpora" / "epyc-turin"))
    parts = json.dumps([split.train, split.val, split.test])
    assert hashlib.sha256(parts.encode()).hexdigest()[:16] == "b75ccd92e5d6abce"


def test_without_held_out_networks_a_fifth_of_the_computations_is_test_and_a_tenth_validation():
    corpus = corpus_of([task_of(f"conv-{i}") for i in range(60)] + [task_of(f"mm-{i}", "matmul") for i in range(40)])
    split = split_tasks(corpus)
    ops = {part: [corpus.tasks[t].op for t in split.part(part)] for part in ("val", "test")}
    assert (ops["test"].count("conv2d"), ops["test"].count("matmul")) == (12, 8)
    assert (ops["val"].count("conv2d"), ops["val"].count("matmul")) == (6, 4)


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(OPS[:3])), max_size=50))
def test_tasks_of_one_computation_stay_on_one_side_whatever_their_operator_is_called(tasks):
    corpus = corpus_of([task_of(f"c{n}", op, task_id=f"{i:016x}") for i, (n, op) in enumerate(tasks)])
    split = split_tasks(corpus)
    parts = [{corpus.tasks[t].computation for t in split.part(part)} for part in ("train", "val", "test")]
    assert sum(map(len, parts)) == len({n for n, _ in tasks})


def test_a_global_pooling_stays_on_one_side_within_a_corpus_and_across_corpora():
    """As MetaSchedule's `adaptive_pool` and Ansor's `pool_layer` spell it."""
    one, two = (task_of(f"avgpool-n1c{c}h7w7-r7x7-s{s}x{s}", "pool", f"{c}-{s}") for c, s in ((64, 7), (64, 1)))
    others = [task_of(f"avgpool-n1c{c}h7w7-r7x7-s{s}x{s}", "pool", f"{c}-{s}") for c in range(1, 40) for s in (7, 1)]
    split = split_tasks(corpus_of(others))
    for part in (split.train, split.val, split.test):
        assert len(part) == 2 * len({task_id.partition("-")[0] for task_id in part})
    tests, trains = corpus_of([one], split={"test": ["64-7"]}), corpus_of([two], split={"train": ["64-1"]})
    assert [leak.tasks for leak in check_leaks([tests, trains])] == [["64-1"]]


@pytest.mark.parametrize(("val", "sizes"), [([20, 21], (20, 2, 7)), (None, (18, 2, 7))])
def test_a_protocol_decides_without_validation_a_tenth_is_and_tasks_outside_it_take_no_part(val, sizes):
    tasks = [task_of(f"c{i}") for i in range(30)]
    ids = [task.task_id for task in tasks]
    protocol = {"train": ids[:20], "test": ids[23:]} | ({"val": [ids[i] for i in val]} if val else {})
    split = split_tasks(corpus_of(tasks, split=protocol))
    assert tuple(map(len, (split.train, split.val, split.test))) == sizes
    assert split.test == tuple(sorted(ids[23:]))


@pytest.mark.parametrize("wrong", [{"train": ["ff" * 8]}, {"train": ["{0}"], "test": ["{0}"]}])
def test_a_protocol_that_names_an_unknown_task_or_one_twice_is_an_error(wrong):
    task = task_of("c")
    split = {part: [name.format(task.task_id) for name in names] for part, names in wrong.items()}
    with pytest.raises(CorpusError, match="twice or that are not there"):
        split_tasks(corpus_of([task], split=split))


def test_the_metric_counts_occurrences_in_held_out_networks():
    shared = task_of("t", networks=(("resnet-50", 3), ("resnet-18", 5), ("bert-base", 2)))
    assert metric_weight(shared) == 5
    assert metric_weight(task_of("t", networks=(("resnet-18", 5),))) == 5
    assert metric_weight(task_of("t")) == 1


weights_strategy = st.dictionaries(st.text(max_size=3), st.floats(0.01, 100), min_size=1, max_size=12)


@given(st.integers(0, 500), weights_strategy, st.data())
def test_shares_sum_to_the_total_near_the_exact_share_and_under_a_cap(total, weights, data):
    shares, mass = apportion(total, weights), sum(weights.values())
    assert sum(shares.values()) == total
    assert all(abs(units - total * weights[key] / mass) < 1 + 1e-9 for key, units in shares.items())
    caps = {key: data.draw(st.integers(0, 50)) for key in weights}
    shares = apportion(total, weights, caps)
    assert sum(shares.values()) == min(total, sum(caps.values()))
    assert all(shares[key] <= caps[key] for key in weights)
