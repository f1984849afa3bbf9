"""Figures of the benchmarks of samplers, of Fasor's cost model and of operator classes, worked out by hand."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.models import CheckpointConfig
from tchub.zoo.training import RankingDataset
from tchub.zoo.training.metrics import pairwise_accuracy
from tchub.zoo.trust import ClassTrust

from scripts.benchmarks.classes import CLASS, expected_below_half, judged, mean_rows, summarise, worst_classes
from scripts.benchmarks.heads import LABELS, Target, judge, scale_of
from scripts.benchmarks.sampling import figures, rounds
from scripts.zoo.classes import pairwise_error

SHARES = (0.02, 0.05, 0.1, 0.2)


def line(sampler: str, share: float, value: float, seed: int = 0, **where: Any) -> dict[str, Any]:
    """A line of the journal."""
    of = {"corpus": "k80", "block": "scratch"} | where
    scores = dict.fromkeys(("pairwise", "mean_top1", "mean_top5"), value)
    counts = {"measuring_seconds": 10.0, "programs": 100, "scores": scores}
    return of | counts | {"sampler": sampler, "share": share, "seed": seed}


def curve(sampler: str, values: tuple[float, ...], seed: int = 0, **where: Any) -> list[dict[str, Any]]:
    return [line(sampler, share, value, seed, **where) for share, value in zip(SHARES, values, strict=True)]


@pytest.mark.parametrize(
    ("curve", "wanted", "share", "bound"),
    [
        ({0.05: 0.6, 0.2: 0.8}, 0.7, math.sqrt(0.05 * 0.2), ""),  # a score grows with the logarithm of the budget
        # A lucky early point: 0.8 and 0.6 come to 0.7 at both shares, and 0.75 is half way from there to the next.
        ({0.02: 0.8, 0.05: 0.6, 0.1: 0.8}, 0.75, math.sqrt(0.05 * 0.1), ""),
        ({0.02: 0.8, 0.1: 0.9}, 0.7, 0.02, "at most"),
        ({0.02: 0.8, 0.1: 0.9}, 0.95, 0.1, "at least"),
        ({0.1: 0.9}, 0.95, 0.1, "at least"),
    ],
)
def test_where_a_curve_reaches_a_score(curve: dict[float, float], wanted: float, share: float, bound: str) -> None:
    assert figures.first_share(curve, wanted) == (pytest.approx(share), bound)


def test_a_sampler_that_has_at_a_twentieth_what_rdu_has_at_a_tenth_needs_half_of_its_budget() -> None:
    rows = curve("rdu", (0.4, 0.5, 0.6, 0.7)) + curve("rdu+", (0.5, 0.6, 0.7, 0.8))
    top1, pairwise = figures.budgets(rows)
    assert (top1["score"], pairwise["score"]) == ("mean_top1", "pairwise")
    assert top1["rdu+"] == pytest.approx(0.5)
    assert top1["rdu"] == pytest.approx(1.0), "RDU needs its own budget"
    assert (top1["rdu+ is"], top1["rdu is"], top1["seeds"]) == ("", "", 1)


def test_budgets_are_of_the_seeds_that_both_curves_have() -> None:
    rows = curve("rdu", (0.4, 0.5, 0.6, 0.7)) + curve("rdu+", (0.5, 0.6, 0.7, 0.8))
    rows += curve("rdu", (0.9, 0.9, 0.9, 0.9), seed=1)
    assert figures.budgets(rows)[0]["rdu+"] == pytest.approx(0.5)
    assert figures.budgets(curve("rdu", (0.4,) * 4) + curve("rdu+", (0.5,) * 4, seed=1)) == []


def test_a_score_that_is_never_reached_is_counted_with_the_largest_share_and_said() -> None:
    rows = curve("rdu", (0.4, 0.5, 0.6, 0.7)) + curve("rdu+", (0.5, 0.6, 0.7, 0.8))
    rows += curve("rdu", (0.4, 0.5, 0.9, 0.9), corpus="mi50") + curve("rdu+", (0.5, 0.6, 0.7, 0.8), corpus="mi50")
    summary = figures.summary(rows)
    assert summary["rdu_plus_budget_ratio"] == pytest.approx((0.5 + 2.0) / 2)
    assert (summary["rdu_plus_budget_ratio_never"], summary["rdu_plus_budget_ratio_at_once"]) == (1, 0)
    assert summary["budget_ratio_cells"] == 2
    rows.append(line("all", 1.0, 0.95, corpus="mi50"))
    assert figures.summary(rows)["rdu_plus_budget_ratio_never"] == 0


def test_differences_are_over_the_seeds_that_both_samplers_have_then_over_corpora() -> None:
    rows = [line("rdu", 0.1, 0.8, 0), line("rdu", 0.1, 0.9, 1), line("random", 0.1, 0.7, 0)]
    rows += [line("rdu", 0.1, 0.6, corpus="mi50"), line("random", 0.1, 0.7, corpus="mi50"), line("rdu", 0.2, 0.0)]
    summary = figures.summary(rows)
    assert summary["rdu_minus_random_top1"] == pytest.approx(0.0)
    assert summary["rdu_plus_minus_rdu_top1"] is None
    assert summary["rdu_plus_budget_ratio"] is None
    assert summary["budget_ratio_cells"] == 0
    first, second = figures.by_cell(rows)
    assert (first["corpus"], first["rdu_minus_random_top1"]) == ("k80", {"mean": 0.1, "stdev": None, "seeds": 1})
    assert second["rdu_minus_random_pairwise"]["mean"] == pytest.approx(-0.1)


@given(st.lists(st.integers(2, 400), min_size=1, max_size=5), st.integers(0, 9))
def test_programs_to_pick_from_and_to_rank_are_apart_and_of_every_task(sizes: list[int], seed: int) -> None:
    ends = np.cumsum([0, *sizes])
    members = [np.arange(low, high) for low, high in itertools.pairwise(ends)]
    pool, test = rounds.halves(members, seed)
    assert not set(pool) & set(test)
    for own in members:
        assert len(np.intersect1d(pool, own)) == min(64, min(len(own), 300) // 2)
        assert len(np.intersect1d(test, own)) == min(len(own), 300) - len(np.intersect1d(pool, own))


class Scores:
    """Stands in for a ranker whose scores are a column."""

    def score(self, features: np.ndarray) -> np.ndarray:
        return features[:, 0, 0].astype(np.float64)


def data(factor: float, tasks: int = 4, programs: int = 10, seed: int = 0) -> RankingDataset:
    """Tasks of any level in which the first column times the factor is -log(latency)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tasks * programs, 25, 22)).astype(np.float32)
    group = np.repeat(np.arange(tasks), programs)
    latency = np.exp(rng.standard_normal(tasks)[group] - factor * x[:, 0, 0].astype(np.float64))
    return RankingDataset(x, latency, group, tuple(map(str, range(tasks))), np.ones(tasks))


def test_the_scale_is_that_of_the_validation_tasks() -> None:
    assert scale_of(Scores().score(data(3.0).features), data(3.0)) == pytest.approx(3.0)
    assert scale_of(np.zeros(40), data(3.0)) == 0.0
    perfect, wrong = judge(Scores(), data(3.0), data(3.0, seed=1)), judge(Scores(), data(1.0), data(3.0, seed=1))
    assert perfect == {"top1": 1, "pairwise": 1, "latency": pytest.approx(1)}
    assert wrong == {"top1": 1, "pairwise": 1, "latency": pytest.approx(1 - (2 / 3) ** 2)}, "a third of the spread"


def test_what_is_measured_is_of_ten_tasks_and_drawn_by_the_seed() -> None:
    own = data(1.0, tasks=16, programs=30)
    target = Target(own, own, ("matmul",) * 16)
    chosen = [target.labels(seed) for seed in (0, 0, 1)]
    assert {len(one) for one in chosen} == {LABELS}
    assert {len(np.unique(one.group)) for one in chosen} == {10}
    assert np.array_equal(chosen[0].latency, chosen[1].latency)
    assert not np.array_equal(chosen[0].latency, chosen[2].latency)


def class_row(operator: str, pairwise: float, side: str = "judge", framework: str = "ansor") -> dict[str, Any]:
    corpus = f"v100-{framework}"
    return {"corpus": corpus, "framework": framework, "side": side, "operator": operator, "pairwise": pairwise}


ROWS = [
    *(class_row("conv2d", pairwise) for pairwise in (0.9, 0.7)),
    *(class_row("reduce", pairwise) for pairwise in (0.2, 0.3)),
    class_row("conv2d", 0.1, side="evidence"),
    class_row("conv2d", 0.4, framework="autotvm"),
]
CONFIG = CheckpointConfig("tcl-v100", "1.0.0", "tcl", {}, "tcl-gpu", "v100")


def test_the_error_of_a_task_is_that_of_a_bootstrap_over_its_programs() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 1, 40) - (latency := rng.uniform(1, 4, 40))
    drawn = [rng.integers(0, 40, 40) for _ in range(300)]
    spread = np.std([pairwise_accuracy(scores[at], latency[at], np.zeros(40, int)) for at in drawn])
    assert pairwise_error(scores, latency) == pytest.approx(spread, rel=0.15)
    assert (pairwise_error(-latency, latency), pairwise_error(scores, np.ones(40))) == (0.0, 1.0)


def test_a_class_that_is_not_trusted_counts_one_half() -> None:
    trust = {"ansor/conv2d": ClassTrust.of([0.8] * 4), "*/reduce": ClassTrust.of([0.2])}
    tasks = judged(CheckpointConfig(**vars(CONFIG) | {"trust": trust}), [one | {"error": 0.1} for one in ROWS])
    rows = mean_rows(tasks, *CLASS, "corpus")
    assert [(r["operator"], r["corpus"], r["tasks"], round(r["raw"], 3), round(r["pairwise"], 3)) for r in rows] == [
        ("conv2d", "v100-ansor", 2, 0.8, 0.8),
        ("conv2d", "v100-autotvm", 1, 0.4, 0.5),
        ("reduce", "v100-ansor", 2, 0.25, 0.5),
    ]
    summary = summarise(tasks)
    assert (summary["worst"], summary["worst_raw"]) == (0.5, 0.25)
    assert (summary["below_half"], summary["below_half_raw"]) == (0, 1), "conv2d of both frameworks is at two thirds"
    assert (summary["below_half_by_corpus"], summary["below_half_by_corpus_raw"]) == (0, 2)
    assert summary["below_half_significantly_by_corpus_raw"] == 1, "0.25 +- 0.14, and 0.4 +- 0.2, which may be chance"
    (worst,) = worst_classes(mean_rows(tasks, *CLASS))
    assert (worst["checkpoint"], worst["of"], worst["worst"]) == ("tcl-v100", "reduce", 0.5)


def test_few_tasks_lie_below_half_as_often_as_tasks_drawn_from_the_evidence() -> None:
    tasks = judged(CONFIG, [one | {"error": 0.1} for one in ROWS])
    conv, reduce = ("tcl-v100", "conv2d", "v100-ansor"), ("tcl-v100", "reduce", "v100-ansor")
    counts = expected_below_half(tasks, {conv: [0.4, 0.8], reduce: [0.6]})
    assert counts == {"below_half_with_evidence": 1, "below_half_expected": 0.2}, "0.4 twice is one draw of four"
    unsure = judged(CheckpointConfig(**vars(CONFIG) | {"trust": {"ansor/conv2d": ClassTrust()}}), tasks)
    assert expected_below_half(unsure, {conv: [0.4], reduce: [0.4]})["below_half_expected"] == 0
