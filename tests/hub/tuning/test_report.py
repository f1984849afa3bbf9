"""Reports: agreement of scores and measurements, charts, and the page."""

import json
from pathlib import Path
from typing import Any

import pytest
from site_pages import Page
from tchub.hub.device.measure import Measurement
from tchub.hub.records.store import MeasuredProgram
from tchub.hub.tuning.report import agreement, spearman, write_report
from tchub.hub.tuning.report_page import render, runs_here


def scored(task: str, pairs: list[tuple[float, float]]) -> list[MeasuredProgram]:
    return [MeasuredProgram(task, "", "tune", "", Measurement((latency,)), score) for score, latency in pairs]


def make_report(**changes: Any) -> dict[str, Any]:
    """A small report with both runs."""
    task = {
        "id": "t1", "name": "fused_matmul_<add>", "op": "matmul", "weight": 2, "flops": 4.2e6, "one_program": False,
        "exhausted": False, "trials": 4, "failed": 1, "untuned": 4e-3, "kept_untuned": False, "best": 1e-3,
        "spearman": 0.8,
    }  # fmt: skip
    run = {
        "model": "tcl-epyc+local@1.0.0", "update": "few-shot", "reasons": ["tcl-epyc: same family"], "trials": 4,
        "trials_asked": 4, "failed": 1, "batch": 2, "tuning_seconds": 12.5, "wall_seconds": 13.0,
        "phases": {"search": 5.0, "model": 1.0, "measure": 6.0, "build": 4.0, "run": 2.0},
        "sum_of_tasks": 2e-3, "sum_of_tasks_untuned": 8e-3,
        "prediction": {"pairs": 3, "pairwise_accuracy": 0.67, "median_spearman": None, "tasks": 0},
        "curve": [
            {"trial": 1, "seconds": 2.0, "latency": 6e-3, "lacking": 0},
            {"trial": 4, "seconds": 12.5, "latency": 2e-3, "lacking": 0},
        ],
        "tasks": [task],
        "programs": [
            {"task": "t1", "seconds": 2.0, "latency": 3e-3, "predicted": 0.4, "error": None},
            {"task": "t1", "seconds": 9.0, "latency": None, "predicted": 0.6, "error": "run: crash"},
            {"task": "t1", "seconds": 12.5, "latency": 1e-3, "predicted": 0.7, "error": None},
        ],
    }  # fmt: skip
    spread = {"first_quartile": 1e-3, "third_quartile": 3e-3, "repeats": [1e-3, 2e-3, 3e-3]}
    latency = {name: {"median": m} | spread for name, m in (("untuned", 8e-3), ("tuned", 2e-3), ("pytorch", 3e-3))}
    check = {"ok": True, "max_abs_diff": 1e-6, "max_abs_output": 3.0, "worst": 0.1}
    return {
        "format": 1, "status": "done", "network": "bert-tiny", "target": "llvm", "threads": 1,
        "layout": "channels-last",
        "settings": {"trials": 4, "batch": None, "search": {"population_size": 16}},
        "created": "2026-01-01T00:00:00Z", "machine": {"cpu_model": "a CPU"},
        "runs": {"tuned": run, "stock": run | {"model": "stock", "update": None, "reasons": []}},
        "latency": latency, "output_check": {"tuned": check},
    } | changes  # fmt: skip


def test_a_model_that_orders_as_the_clock_does_agrees_fully() -> None:
    trials = scored("a", [(0.9, 1.0), (0.5, 2.0), (0.1, 3.0), (0.05, 9.0)])
    assert spearman(trials) == pytest.approx(1.0)
    same = {"pairs": 6, "pairwise_accuracy": 1.0, "median_spearman": pytest.approx(1.0), "tasks": 1}
    assert agreement(trials) == same


def test_too_few_programs_or_equal_scores_say_nothing() -> None:
    assert spearman(scored("a", [(0.9, 1.0), (0.5, 2.0), (0.1, 3.0)])) is None
    assert spearman(scored("a", [(0.5, float(i + 1)) for i in range(6)])) is None


def text_of(report: dict[str, Any]) -> str:
    """Return the visible text of a page whose tags all close and that loads nothing."""
    page = Page(render(report))
    assert page.links() == []
    return page.one("body").text


def test_the_page_needs_nothing_else_and_escapes_what_it_names() -> None:
    text = text_of(make_report())
    assert "1.50x faster than PyTorch" in text
    assert "fused_matmul_<add>" in text


@pytest.mark.parametrize(
    "change",
    [{"status": "interrupted"}, {"device": "rpc:turin"}, {"output_check": {"tuned": {"ok": False}}}],
    ids=["interrupted", "elsewhere", "wrong"],
)
def test_a_network_that_does_not_run_here_or_is_wrong_is_not_suggested_to_be_run(change: dict[str, Any]) -> None:
    assert runs_here(make_report())
    assert not runs_here(make_report(**change))


def test_the_json_is_strict(tmp_path: Path, without_charts: None) -> None:
    report = make_report()
    report["output_check"]["tuned"]["max_abs_diff"] = float("inf")
    write_report(report, tmp_path)
    text = (tmp_path / "report.json").read_text()
    assert "Infinity" not in text
    assert json.loads(text)["runs"]["tuned"]["curve"][1]["latency"] == 2e-3
    assert not list(tmp_path.glob("*.part"))
