"""The figures of searches side by side, from curves that can be read off by hand."""

from math import inf
from typing import Any

import pytest

from scripts.benchmarks.curves import figures, first_at, saved
from scripts.benchmarks.search import summed_up

TODAY = [inf, 9.0, 6.0, 5.0, 4.0, 4.0]


def row(system: str, curve: list[float], network: str = "net", seed: int = 0) -> dict[str, Any]:
    return {"network": network, "system": system, "seed": seed, "tasks": 1, "curve": curve, "seconds": 1.0}


def test_a_system_is_worth_the_measurements_until_todays_final_latency() -> None:
    assert first_at(TODAY, 4.0) == 4
    rows = [row("today", TODAY), row("new", [inf, 8.0, 4.0, 4.0, 3.0, 2.0])]
    today, new = figures(rows, ("today", "new"))
    assert today["measurements_ratio"]["mean"] == today["latency_ratio"]["mean"] == 1.0
    assert new["measurements_ratio"] == {"mean": 2.0, "half": None}
    assert new["latency_ratio"]["mean"] == pytest.approx(2.0)
    assert new["after 1"]["mean"] == pytest.approx(2.0)


def test_a_system_that_never_has_it_counts_with_all_that_it_measured() -> None:
    """And one that ends early with all that today's search measured."""
    for curve in ([inf, 9.0, 9.0, 8.0, 7.0, 6.0], [inf, 9.0, 8.0]):
        (worse,) = figures([row("today", TODAY), row("worse", curve)], ["worse"])
        assert worse["measurements_ratio"]["mean"] == pytest.approx(4 / 5)
        assert worse["reached"]["mean"] == 0


def test_networks_are_averaged_within_a_seed_and_the_interval_is_of_the_seeds() -> None:
    fast, slow = [inf, 4.0, 4.0, 4.0, 4.0, 4.0], TODAY
    rows = [row("today", TODAY, network, seed) for network in "ab" for seed in (0, 1)]
    curves = {("a", 0): fast, ("a", 1): slow, ("b", 0): slow, ("b", 1): slow}
    (new,) = figures([*rows, *(row("new", curve, *run) for run, curve in curves.items())], ["new"])
    assert new["measurements_ratio"]["mean"] == pytest.approx((2.0 + 1.0) / 2), "4 and 1 on one seed, 1 and 1 on other"
    assert new["measurements_ratio"]["half"] == pytest.approx(1.96 * 0.5)


def test_a_system_that_was_not_run_has_no_figure() -> None:
    fast = [{"fast_ms": 12.0, "search_ms": 10.0, "fast_seconds": 20.0}]
    assert figures([], ["new"]) == [{"system": "new"}]
    assert summed_up([], fast) == {"fast_mode_ratio": pytest.approx(1.2), "fast_mode_seconds": 20.0}


def test_the_summary_is_of_the_search_with_schedules() -> None:
    rows = [row("today", TODAY), row("today + database", TODAY), row("dqn + database", [inf, 8.0, 4.0, 4.0, 3.0, 2.0])]
    table = figures(rows, ("today", "today + database", "dqn + database"))
    assert summed_up(table, []) == saved(table) == {"measurements_ratio": 1.0}
