"""The benchmark of samplers: figures of made-up runs that can be worked out by hand, and what its journal keeps."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.benchmarks.sampling import figures, rounds

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
