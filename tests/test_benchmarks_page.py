"""The page of benchmarks and its picture say what the JSON files say, losses first."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def tool() -> Any:
    return importlib.import_module("scripts.benchmarks.report.page")


def job(
    summary: dict[str, Any], details: dict[str, Any], command: str = "python -m scripts.benchmarks x"
) -> dict[str, Any]:
    machine = {"device": "test-cpu", "cpu_model": "Test CPU", "cores": 2}
    return {
        "command": command, "date": "2026-01-01", "seeds": [0, 1], "machine": machine,
        "summary": summary, "details": details,
    }  # fmt: skip


def spread(middle: float) -> dict[str, float]:
    return {"median": middle, "least": middle / 2, "largest": 2 * middle}


@pytest.fixture
def found() -> dict[str, Any]:
    def run(network: str, system: str, last: float) -> dict[str, Any]:
        curve = [[0, 0.0, 9.0], [8, 30.0, last]]
        return {"network": network, "system": system, "seed": 0, "curve": curve, "seconds": {"tuning": 31.0}}

    rows = [
        {"network": "won", "time_ratio": spread(12.0), "latency_ratio_equal_trials": spread(1.3)},
        {"network": "lost", "time_ratio": spread(0.5), "latency_ratio_equal_trials": spread(0.9)},
    ]
    timed = [{"network": "lost", "seed": 0, "median_ms": {"tilenet": 5.0, "pytorch": 4.0, "stock": 6.0}}]
    tuning = {
        "systems": {"stock": "as it ships", "tilenet": "tchub"},
        "tables": {"tilenet": rows},
        "latency": timed,
        "runs": [run(n, s, ms) for n in ("won", "lost") for s, ms in (("stock", 4.0), ("tilenet", 3.0))],
        "not_done": ["huge stock seed 0"],
    }
    headline = {"time_ratio": 2.4, "trials_ratio": 11.0, "latency_ratio_equal_trials": 1.2, "slower_than_pytorch": 1}
    headline["systems"] = {"tilenet": {"time_ratio": 2.4, "trials_ratio": 11.0, "reached": 1, "runs": 2}}
    scored = {name: {"64": {"us": us}} for name, us in (("stock", 3000.0), ("tilenet", 90.0), ("tcl", 60.0))}
    slower = {name: {"64": {"us": us}} for name, us in (("stock", 30.0), ("tilenet", 90.0))}
    rates = {"a|b/ours": {"rate_ratio": 8.5}, "slow/ours": {"rate_ratio": 0.8}}
    return {
        "predict": job({"llvm_ratio": 33.3}, {"tasks": {"llvm": {"dense": scored, "pool": slower}}, "forward": []}),
        "tuning": job(headline, tuning, "python -m scripts.benchmarks tuning --json"),
        "measure": job({"rate_ratio": 8.5, "failed_only_ours": 2, "spread": 0.02}, {"idle": rates}),
    }


def test_the_page_and_the_picture_are_up_to_date() -> None:
    command = [sys.executable, "-m", "scripts.benchmarks.report.page", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_command_machine_date_and_seeds_stand_beside_the_figures(tool: Any, found: dict[str, Any]) -> None:
    text = tool.page(found)
    told = (
        "Measured on test-cpu (Test CPU, 2 cores), 2026-01-01, seeds 0, 1, "
        "by `python -m scripts.benchmarks tuning --json`."
    )
    assert told in text
    assert "| stock's trials to its final latency over tchub's | at least 10 | **11** | met |" in text
    assert "12 (6 to 24)" in text, "the median of the seeds, with their spread"
    assert "a\\|b" in text, "a bar in a name does not end the cell"
    assert "| tchub | 2.4 | 11 | 1 | 2 |" in text
    assert "| dense | 64 | 3,000 | 90 | 60 | 33.3 |" in text
    assert "| lost | stock | 31 |" in text
    assert "Not run: huge stock seed 0." in text


def test_losses_and_missed_goals_come_first(tool: Any, found: dict[str, Any]) -> None:
    text = tool.page(found)
    section = text[text.index("Where tchub loses") : text.index("## Tuning whole networks")]
    assert len(re.findall(r"(?m)^- ", section)) == 8
    assert "is 2.4; the goal is at least 10" in section
    assert "networks slower than PyTorch eager is 1; the goal is at most 0" in section
    assert "lost: stock is better in code at equal trials (0.9 times" in section
    assert "lost: stock is better in time to stock's final latency (0.5 times" in section
    assert "lost, seed 0: slower than PyTorch eager, 5 ms against 4 ms" in section
    assert "won" not in section
    assert "programs that stock measures and tchub does not is 2; the goal is at most 0" in section
    assert "slow/ours, idle: stock measures more programs a second (0.8 times)" in section
    assert "llvm, pool, batches of 64: stock scores faster" in section


def test_a_benchmark_that_was_not_run_has_no_section(tool: Any, found: dict[str, Any]) -> None:
    text = tool.page({"measure": found["measure"]})
    assert "Tuning whole networks" not in text
    assert "speed.svg" not in text
    assert "not run" not in text.lower()


def test_the_table_of_a_thousand_devices_is_worked_out_from_what_one_process_managed(tool: Any) -> None:
    summary = {
        "run_seconds": 0.5, "build_seconds": 0.25, "library_kib": 512.0, "tracker_upload_mib_per_second": 100.0,
        "tracker_questions_per_second": 300.0, "session_ms": 40.0, "journal_writes_per_second": 1000.0,
        "merge_programs_per_second": 10000.0,
    }  # fmt: skip
    empty = "before\n<!-- scale -->\n<!-- /scale -->\nafter\n"
    text = tool.fill(empty, {"scale": job(summary, {}), "corpus": job({"train_programs_per_second": 2000.0}, {})})
    assert text.startswith("before\n<!-- scale -->\n| engine |")
    assert text.endswith("<!-- /scale -->\nafter\n")
    assert "| a program in 0.5 s | 2,000 programs a second, 7.2 million an hour |" in text
    assert "500 cores build without a break" in text
    assert "1,000 MiB/s leave the builders" in text
    assert "serves 500 devices: 2 files" in text
    assert "an hour's programs in 12 min" in text
    assert "an epoch of an hour's programs in 60 min; with 8 processes 8 min at best" in text
    assert tool.fill(empty, {}) == empty


def test_the_picture_has_both_themes_and_changes_with_the_figures(
    tool: Any, found: dict[str, Any], tmp_path: Path
) -> None:
    text = tool.draw(found)
    ElementTree.fromstring(text)
    assert all(
        word in text for word in ("prefers-color-scheme: dark", "tchub", "stock MetaSchedule", "won", "2.4x", "8.5x")
    )
    file = tmp_path / "speed.svg"
    file.write_text(text)
    assert tool.is_current(file, tool.fingerprint(found))
    found["measure"]["summary"]["rate_ratio"] = 9.0
    assert not tool.is_current(file, tool.fingerprint(found))
