"""The benchmark of this machine's targets: the order of its runs, its figures worked out by hand, its page."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks.local import run as bench
from scripts.benchmarks.local import steps


def test_a_run_comes_after_the_one_whose_model_it_starts_from() -> None:
    runs = bench.plan(["a", "b"], [0, 1], lambda *run: run)
    assert set(runs) == set(itertools.product(["a", "b"], steps.TARGETS, steps.SOURCES, [0, 1]))
    for place, (network, target, source, seed) in enumerate(runs):
        if source == "other":
            other = steps.TARGETS[target].other
            assert other != target
            assert (network, other, "epyc", seed) in runs[:place]


SCORES = {
    "start": {"programs": 160.0, "pairwise": 0.5, "given_pairwise": 0.6, "given_mean_top1": 0.7},
    "decided": {"programs": 160.0, "pairwise": 0.55, "given_pairwise": 0.8, "given_mean_top1": 0.75},
}


def run_row(source: str, before: float, after: float) -> dict[str, Any]:
    adapt = {"programs": 70, "failed": 1, "measuring_seconds": 12.0, "learning_seconds": 3.0, "level": 0.9}
    adapt |= {
        "zero_shot_before": before - 0.1,
        "before": before,
        "after": after,
        "interval": [0.01, 0.2],
        "decision": "adapted",
        "learning": {"method": "few-shot"},
    }
    facts = {"network": "bert-tiny", "target": "v2-1", "source": source, "seed": 0}
    return facts | {"adapt": adapt, "tune": {"tuning_seconds": 20.0}}


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    latency = {"untuned": {"median": 0.04}, "none": {"median": 0.004}, "epyc": {"median": 0.002}}
    latency |= {"xeon": {"median": 0.005}}
    made = [run_row("none", 0.5, 0.6), run_row("epyc", 0.7, 0.8), run_row("xeon", 0.6, 0.7), run_row("other", 0.8, 0.9)]
    return [bench.table_row(row, {"latency": latency}, SCORES) for row in made]


def test_ratios_are_over_no_pretraining_and_a_network_without_latency_has_none(rows: Any) -> None:
    summary = bench.summarise(rows)
    assert summary["epyc_latency_ratio"] == pytest.approx(2.0)
    assert summary["xeon_latency_ratio"] == pytest.approx(0.8)
    assert "other_latency_ratio" not in summary
    assert summary["epyc_zero_shot"] == pytest.approx(0.6)
    assert (summary["none_before"], summary["other_after"]) == (0.5, 0.9)
    assert (summary["runs"], summary["adapted"]) == (4, 4)


def test_runs_that_differ_in_any_setting_are_kept_apart() -> None:
    run = steps.LocalRun(Path("runs"), "bert-tiny", "v2-1", "epyc", 0)
    changes = {"target": "full-1", "source": "none", "seed": 1}
    folders = {replace(run, **{name: value}).folder for name, value in changes.items()}
    assert len({run.folder, *folders}) == len(changes) + 1
