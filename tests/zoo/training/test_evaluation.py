"""A task of which a few programs are measured, what is measured for a card's plots, and which tasks it knows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.corpus import Task
from tchub.zoo.models import CostModel, create
from tchub.zoo.training import RankingDataset, evaluate_random, evaluate_scores
from tchub.zoo.training.evaluation import (
    TOP,
    RankedPrograms,
    draw_labels,
    evaluate_unknown,
    measure_curves,
    scores_given,
)
from tchub.zoo.training.training_data import load_training_data
from test_fit_corpora import make_corpus

from scripts.zoo.measure_cards import judging_tasks, learnt_computations

SIZES = (30, 7, 1, 2)
sizes = st.lists(st.integers(0, 12), min_size=1, max_size=5)
amounts = st.integers(0, 20)


def toy_data(sizes: tuple[int, ...] | list[int] = SIZES, seed: int = 0) -> RankingDataset:
    """Tasks of so many programs, in no order; a program's speed is one of its columns, another in each task."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int64)
    x = rng.standard_normal((len(group), 1, 6)).astype(np.float32)
    speed = x[np.arange(len(group)), 0, group % 6]
    weights = np.arange(1.0, 1 + len(sizes))
    return RankingDataset(x, np.exp(3.0 * group - speed), group, tuple(f"task{i}" for i in range(len(sizes))), weights)


def new_model(arch: str = "tilenet") -> CostModel:
    torch.manual_seed(0)
    return create(arch, width=6, hidden=8)


@given(sizes, amounts, st.integers(0, 99))
def test_labels_are_drawn_in_each_task_and_at_most_half_of_it(sizes: list[int], labels: int, seed: int) -> None:
    data = toy_data(sizes)
    known = draw_labels(data, labels, seed)
    assert known.shape == (len(data),)
    assert known.dtype == bool
    for size, members in zip(sizes, data.members, strict=True):
        assert known[members].sum() == min(labels, size // 2)


def test_each_task_is_scored_given_its_own_labels_alone() -> None:
    data, model = toy_data(), new_model()
    known = draw_labels(data, 5, seed=3)
    scores = scores_given(model, data, known)
    for members in data.members:
        have, rest = members[known[members]], members[~known[members]]
        expected = model.score_given(data.features[rest], data.features[have], data.latency[have])
        assert np.array_equal(scores[rest], expected)
    alone = data.take(np.flatnonzero(data.group == 2))
    scores = scores_given(model, alone, draw_labels(alone, 5))
    assert np.array_equal(scores, model.score(alone.features))  # one program: nothing to draw


def test_who_was_measured_is_not_judged() -> None:
    """Not by a score, which for labels is NaN, and not as the best program of the task either."""
    data = toy_data()
    known, scores = draw_labels(data, 5), -np.log(data.latency)
    judged = evaluate_unknown(data, known, np.where(known, np.nan, scores))
    assert judged == {"top1": 1, "top5": 1, "mean_top1": 1, "mean_top5": 1, "pairwise": 1}
    assert judged == evaluate_unknown(data, known, np.where(known, 1e9, scores))


def test_the_first_and_the_fifth_of_top_k_are_the_published_scores():
    data, rng = toy_data((60,) * 8), np.random.default_rng(1)
    scored = 0.3 * rng.standard_normal(len(data)) - np.log(data.latency)
    tasks = {name: Task(name, name, "conv2d", 1.0, "") for name in data.task_ids}
    part = RankedPrograms("own", tasks, data, scored, {name: name for name in tasks})
    curve = {row["k"]: row for row in measure_curves([part])["top_k"]}
    scores = evaluate_scores(scored, data.latency, data.group, data.task_weights)
    chance = evaluate_random(data.latency, data.group, data.task_weights)
    assert tuple(curve) == TOP
    for k in (1, 5):
        assert curve[k]["model"] == pytest.approx(scores[f"top{k}"], abs=1e-4)
        assert curve[k]["mean_model"] == pytest.approx(scores[f"mean_top{k}"], abs=1e-4)
        assert curve[k]["random"] == pytest.approx(chance[f"top{k}"], abs=1e-4)
    assert [row["model"] for row in curve.values()] == sorted(row["model"] for row in curve.values())


def test_what_was_learnt_is_what_gather_reads_and_what_chose_the_epoch(tmp_path):
    names = [f"matmul-{i}" for i in range(12)]
    target = make_corpus(tmp_path / "target", "epyc-turin", names, test=("matmul-0", "matmul-1"))
    source = make_corpus(tmp_path / "source", "xeon", ["matmul-0", "other-1", "other-2", "other-3"], test=("other-1",))
    data = load_training_data(target, [source], "tcl-cpu")
    known = {task.task_id: task.computation for corpus in (target, source) for task in corpus.tasks.values()}
    read = {known[task] for part in (data.train, data.val) if part for task in part.task_ids}
    assert learnt_computations([target, source]) == read


def test_a_task_that_computes_the_same_as_a_training_task_is_not_unseen(tmp_path):
    target = make_corpus(tmp_path / "target", "epyc-turin", ["matmul-0", "matmul-1", "matmul-2"], test=("matmul-0",))
    learnt = learnt_computations([target])
    elsewhere = make_corpus(tmp_path / "other", "xeon", ["matmul-0", "matmul-1", "new"], test=("matmul-1", "new"))
    assert [elsewhere.tasks[task].computation for task in judging_tasks(elsewhere, learnt)] == ["new"]


def test_a_corpus_without_a_test_task_is_judged_by_all_of_its_tasks(tmp_path):
    one = make_corpus(tmp_path / "one", "xeon", ["matmul-7"])
    assert judging_tasks(one) == [*one.tasks]
    assert judging_tasks(one, {"matmul-7"}) == []
