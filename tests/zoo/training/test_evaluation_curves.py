"""What is measured for a card's plots, and which tasks of other corpora a checkpoint does not know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tchub.zoo.corpus import Task, computation
from tchub.zoo.training import RankingDataset, evaluate_random, evaluate_scores
from tchub.zoo.training.evaluation import (
    BINS,
    TOP,
    WORST,
    RankedPrograms,
    measure_curves,
)
from tchub.zoo.training.training_data import load_training_data
from test_fit_corpora import make_corpus

from scripts.zoo.measure_cards import learnt_computations, unseen_tasks


def ranked(
    tasks: int = 8, programs: int = 60, noise: float = 0.3, seed: int = 0, corpus: str = "own"
) -> RankedPrograms:
    """Tasks whose scores follow the latency, the more noise the less."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(tasks), programs)
    latency = np.exp(rng.standard_normal(len(group)))
    ids = tuple(f"{corpus}-{i:03d}" for i in range(tasks))
    data = RankingDataset(np.zeros((len(group), 1, 1), np.float32), latency, group, ids, np.arange(1.0, tasks + 1))
    known = {
        name: Task(name, f"task {name}", "conv2d" if i % 2 else "softmax", 1.0, "", networks=())
        for i, name in enumerate(ids)
    }
    scores = -np.log(latency) + noise * rng.standard_normal(len(group))
    return RankedPrograms(
        corpus, known, data, scores, {name: computation.matmul(8, 8, i + 1) for i, name in enumerate(ids)}
    )


def test_the_first_and_the_fifth_of_top_k_are_the_published_scores():
    part = ranked()
    told = {row["k"]: row for row in measure_curves([part])["top_k"]}
    data = part.data
    scores = evaluate_scores(part.scores, data.latency, data.group, data.task_weights)
    chance = evaluate_random(data.latency, data.group, data.task_weights)
    assert tuple(told) == TOP
    for k in (1, 5):
        assert told[k]["model"] == pytest.approx(scores[f"top{k}"], abs=1e-4)
        assert told[k]["mean_model"] == pytest.approx(scores[f"mean_top{k}"], abs=1e-4)
        assert told[k]["random"] == pytest.approx(chance[f"top{k}"], abs=1e-4)
    assert [row["model"] for row in told.values()] == sorted(row["model"] for row in told.values())


def test_of_several_corpora_top_k_is_the_mean_and_all_else_is_of_all_programs():
    parts = [ranked(seed=1), ranked(tasks=3, seed=2, corpus="other")]
    both, *alone = (measure_curves(some) for some in (parts, parts[:1], parts[1:]))
    mean = (alone[0]["top_k"][0]["model"] + alone[1]["top_k"][0]["model"]) / 2
    assert both["top_k"][0]["model"] == pytest.approx(mean, abs=1e-4)
    assert (both["tasks"], both["programs"]) == (11, 11 * 60)
    assert sum(row["programs"] for row in both["calibration"]) == 11 * 60


def test_a_perfect_ranking_is_calibrated_perfectly_and_has_no_failure():
    curves = measure_curves([ranked(noise=0.0)])
    assert all(row["mean"] == row["perfect"] for row in curves["calibration"])
    means = [row["mean"] for row in curves["calibration"]]
    assert means == sorted(means)
    assert len(means) == BINS
    assert all(row["pairwise"] == 1 and row["top1"] == 1 for row in curves["failures"]["tasks"])


def test_the_worst_tasks_come_first_and_are_told_in_words():
    part = ranked()
    upside_down = part.data.group == 3
    curves = measure_curves([replace(part, scores=np.where(upside_down, -part.scores, part.scores))])
    worst = curves["failures"]["tasks"]
    assert len(worst) == WORST
    assert worst[0]["task"] == "own-003"
    assert worst[0]["words"] == "matrix product, 8x4 by 4x8"
    assert worst[0]["pairwise"] < 0.3 < worst[1]["pairwise"]
    assert [row["pairwise"] for row in worst] == sorted(row["pairwise"] for row in worst)


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
    found = unseen_tasks(elsewhere, learnt)
    assert [elsewhere.tasks[task].computation for task in found.tasks] == ["new"]
    assert (found.part, found.seen) == ("test", 1)


def test_a_corpus_without_a_test_task_is_judged_by_all_of_its_tasks(tmp_path):
    one = make_corpus(tmp_path / "one", "xeon", ["matmul-7"])
    assert unseen_tasks(one, set()).part == "all"
    assert len(unseen_tasks(one, set()).tasks) == 1
    assert unseen_tasks(one, {"matmul-7"}) == replace(unseen_tasks(one, set()), tasks=(), seen=1)
