"""Curves and ratios of the benchmarks of tuning and of searches, from runs that can be checked by hand."""

from math import inf
from typing import Any

import pytest

from scripts.benchmarks import tuning
from scripts.benchmarks.curves import figures, first_at, saved
from scripts.benchmarks.search import summed_up
from scripts.benchmarks.tuning import OURS, REFERENCE, Point

# After trials and seconds: the sum of two tasks, and how many of them have no program of their own.
SLOW = [(0, 0, 90, 2), (1, 10, 50, 1), (2, 11, 8, 0), (100, 60, 6, 0), (150, 80, 4.1, 0), (200, 100, 4, 0)]
FAST = [(0, 0.0, 90.0, 2), (1, 1.0, 40.0, 1), (2, 2.0, 5.0, 0), (50, 20.0, 4.0, 0), (200, 50.0, 2.0, 0)]
LATE = [(0, 0.0, 90.0, 2), (1, 10.0, 50.0, 1), (150, 90.0, 8.0, 0), (200, 100.0, 4.0, 0)]


def run(system: str, curve: Any, network: str = "bert-tiny", seed: int = 0, ms: float = 1.0) -> dict[str, Any]:
    key = {"network": network, "system": system, "seed": seed, "trials": 500, "model": "tilenet-epyc@1.4.0"}
    ends = {"spent": curve[-1][0], "seconds": curve[-1][1] + 1.0, "sum_of_tasks_ms": curve[-1][2]}
    return key | ends | {"curve": curve, "tasks": 2, "ms": {"tuned": ms}}


@pytest.mark.parametrize(
    ("mine", "theirs", "reached", "trials", "time", "latency"),
    [
        (FAST, SLOW, True, 200 / 50, 100 / 20, (4 / 2, 8 / 4, 6 / 4)),
        (SLOW, FAST, False, 200 / 200, 50 / 101, (2 / 4, 4 / 8, 4 / 6)),  # all that it spent stands
        (FAST, LATE, True, 200 / 50, 100 / 20, (4 / 2, None, None)),  # an untuned task says nothing of a model
        (FAST[:4], SLOW, True, 200 / 50, 100 / 20, (8 / 4, None, None)),  # at 50 trials, where the shorter ends
        (FAST, [*SLOW[:1], (1, 6.0, 90.0, 1)], True, 1, 6 / 1, (None, None, None)),  # the untuned start is no trial
    ],
)
def test_a_run_beside_the_reference(
    mine: Any, theirs: Any, reached: bool, trials: float, time: float, latency: Any
) -> None:
    row = tuning.versus(run(OURS, mine, ms=2.0), run(REFERENCE, theirs, ms=5.0))
    assert row["network_ratio"] == 2.5
    assert (row["reached"], row["trials_ratio"], row["time_ratio"]) == (reached, trials, time)
    assert tuple(row[f"latency_ratio_{at}_trials"] for at in ("equal", 64, 128)) == latency


def test_means_are_geometric_over_networks_and_seeds() -> None:
    rows = [run(REFERENCE, SLOW), run(REFERENCE, SLOW, seed=1), run(OURS, FAST), run(OURS, SLOW, seed=1)]
    summary, details = tuning.figures([*rows, run(REFERENCE, SLOW, "vit-tiny"), run(OURS, SLOW, "vit-tiny")])
    assert (summary["time_ratio"] ** 4, summary["trials_ratio_near"] ** 4) == pytest.approx((5, 3)), "within 5%: at 150"
    assert (summary["networks"], summary["compared"], summary["reached"]) == (2, 3, 3)
    assert details["systems_held_out"][0]["time_ratio"] == pytest.approx(5**0.5), "vit-tiny is no held-out network"
    assert summary["time_ratio_held_out"] == pytest.approx(5**0.5)


def test_a_thinned_curve_keeps_its_ends_and_where_it_falls() -> None:
    curve = [Point(trials, float(trials), 100.0 - trials // 3, 0) for trials in range(300)]
    assert tuning.thin(curve[:7]) == [curve[0], curve[3], curve[6]]
    kept = tuning.thin(curve)
    assert (len(kept), kept[0], kept[-1]) == (tuning.MOST_POINTS, curve[0], curve[-1])


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
