"""The tuning benchmark's figures, from rows and judged latencies that can be added up by hand."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.benchmarks.tuning import figures

TASKS = [{"task": "a", "name": "matmul", "weight": 2}, {"task": "b", "name": "softmax", "weight": 1}]
JUDGED = {
    ("a", "untuned"): 10.0, ("b", "untuned"): 4.0,
    ("a", "slow"): 5.0, ("a", "fast"): 3.0, ("b", "fast"): 1.0, ("b", "worse"): 9.0,
}  # fmt: skip


def row(system: str, trajectory: list[list[Any]], network: str = "net") -> dict[str, Any]:
    seconds = {"tuning": trajectory[-1][0] + 1.0, "prepare": 0.0, "process": 0.0}
    return {
        "network": network, "system": system, "seed": 0, "trials_per_task": 2, "tasks": TASKS,
        "trajectory": trajectory, "seconds": seconds,
    }  # fmt: skip


STOCK = [[10.0, 0, 0.5, "slow"], [20.0, 0, 0.9, None], [30.0, 1, 0.1, "fast"], [40.0, 1, None, None]]


def test_a_curve_counts_what_the_judge_measured() -> None:
    points = figures.curve(row("stock", STOCK), JUDGED)
    assert [p.latency for p in points] == [24.0, 14.0, 14.0, 11.0, 11.0]
    assert [p.trials for p in points] == [0, 1, 2, 3, 4]


def test_a_program_that_is_worse_than_the_untuned_one_or_unjudged_gains_nothing() -> None:
    points = figures.curve(row("stock", [[1.0, 1, 0.1, "worse"], [2.0, 0, 0.1, "never judged"]]), JUDGED)
    assert [p.latency for p in points] == [24.0, 24.0, 24.0]


def test_time_and_trials_to_stocks_final_latency() -> None:
    ours = row("tilenet", [[2.0, 0, 0.2, "fast"], [3.0, 1, 0.1, "fast"]])
    found = figures.versus(ours, row("stock", STOCK), JUDGED)
    assert (found["reached"], found["seconds_to_stock"], found["trials_to_stock"]) == (True, 2.0, 1)
    assert (found["time_ratio"], found["trials_ratio"]) == (15.0, 3.0)
    assert found["wall_ratio"] == 20.5
    assert found["latency_ratio_equal_trials"] == 2.0, "after two trials: 14 of stock, 7 of ours"
    assert found["latency_ratio_at_stock_wall"] == pytest.approx(11 / 7)


def test_a_run_that_never_reaches_stock_counts_with_all_that_it_spent() -> None:
    found = figures.versus(row("tcl", [[4.0, 0, 0.5, "slow"]]), row("stock", STOCK), JUDGED)
    assert (found["reached"], found["seconds_to_stock"], found["trials_to_stock"]) == (False, 5.0, 1)
    assert found["time_ratio"] == 6.0
