"""What the documents say is what the files hold: figures, commands, and the index of checkpoints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tchub.hub.cli import COMMANDS
from tchub.zoo.features.nest_columns import PROGRAM_COLUMNS
from tchub.zoo.models import context, create, tilenet, trees
from tchub.zoo.training import TrainConfig

from scripts.benchmarks.report.leaderboard import leaderboard_markdown

ROOT = Path(__file__).resolve().parent.parent
# What scripts/zoo/build.py writes beside the benchmarks: facts of what it made, no figures of a run.
RECORDS = {"corpora", "zoo"}
BENCHMARKS = sorted(f for f in (ROOT / "docs" / "benchmarks").glob("*.json") if f.stem not in RECORDS)
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("script", ["benchmarks.report.readme", "zoo.index"])
def test_generated_files_agree_with_their_sources(script: str) -> None:
    command = [sys.executable, "-m", f"scripts.{script}", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_every_benchmark_names_machine_command_seeds_and_summary(path: Path) -> None:
    document = json.loads(path.read_text())
    assert document["benchmark"] == path.stem
    _, _, module, *arguments = document["command"].split()
    assert module in ("scripts.fuzz", "scripts.kills") or (module, arguments[0]) == ("scripts.benchmarks", path.stem)
    assert {"seeds", "machine", "summary", "details", "date"} <= set(document)
    assert document["summary"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_the_documents_exist(path: Path) -> None:
    told = set(re.findall(r"(?m)^(?:\$ )?tchub ([a-z]+)", path.read_text()))
    assert told <= set(COMMANDS)


@pytest.mark.slow
def test_the_readmes_own_network_tunes_loads_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TCHUB_HOME", str(tmp_path / "home"))
    found = re.search(r"## Your own network.*?```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(found[1].replace("trials=64", "trials=2"), names)
    torch.testing.assert_close(names["y"], names["module"](names["x"]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_the_documents_link_exist(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text())
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing


def test_the_document_of_the_models_tells_their_sizes_as_they_are() -> None:
    told, config = (ROOT / "docs" / "models.md").read_text(), tilenet.TileNetConfig()
    assert f"one row of {PROGRAM_COLUMNS} numbers of its loop nest" in told
    assert f"layers of {config.hidden}" in told
    assert f"`e(q)` of {config.embedding} numbers" in told
    assert ", ".join(map(str, tilenet.CONTEXT_SIZES[:-1])) + f" or {tilenet.CONTEXT_SIZES[-1]}" in told
    assert f"of more than {context.MAX_CONTEXT} the last" in told
    assert f"From {context.MIN_TREES} labels on" in told
    half = context.HALF_TREES
    assert f"`n / (n + {half}) min(1, E(s) / E(t))` of `n` labels: half at {half}" in told
    assert f"added {tilenet.CALIBRATION} times the Huber" in told
    assert f"({trees.TASK_ROUNDS} of depth {trees.TASK_SETTINGS['max_depth']}, " in told
    assert f"The recipe takes `{TrainConfig.find('tilenet').loss}`" in told
    for arch, width, hardware in (("tcl", 22, True), ("tlp", 22, False), ("tenset-mlp", 174, False)):
        assert f"{create(arch, width=width, hardware=hardware).parameter_count():,} numbers" in told


def test_the_leaderboard_is_that_of_the_benchmark() -> None:
    source, page = ROOT / "docs" / "benchmarks" / "models.json", ROOT / "docs" / "leaderboard.md"
    assert page.read_text() == leaderboard_markdown(json.loads(source.read_text()))


def scored(model: str, corpus: str, pairwise: float, **facts: Any) -> dict[str, Any]:
    """A row of models.json."""
    scores = {key: {"mean": pairwise, "stdev": 0.004} for key in ("pairwise", "mean_top1", "top1", "top5", "mean_top5")}
    return (
        {"corpus": corpus, "protocol": f"test tasks of {corpus}", "model": model, "seeds": [0, 1, 2]} | scores | facts
    )


COMPARED = {
    "benchmark": "models",
    "command": "python -m scripts.benchmarks models --json",
    "seeds": [0, 1, 2],
    "machine": {"device": "epyc-turin", "cpu_model": "AMD EPYC", "cores": 2},
    "summary": {
        "v100": {
            "best_model": "tilenet", "mean_top1": 0.9, "top5": 0.99, "pairwise": 0.9, "xgb_mean_top1": 0.8,
            "xgb_pairwise": 0.85,
        }
    },
    "details": {
        "rows": [
            scored("xgboost", "v100", 0.85, parameters=None),
            scored("tilenet", "v100", 0.9, parameters=189510, bytes=2**20, train_seconds=61.2, programs_per_second=1e5),
            scored("tcl", "v100", 0.88, top1=None, notes="stopped at 3 epochs"),
            scored("random", "k80", 0.5, seeds=[]),
        ]
    },
}  # fmt: skip


def test_a_leaderboard_is_sorted_by_pairwise_accuracy_and_marks_best_and_baselines() -> None:
    text = leaderboard_markdown(COMPARED)
    v100 = text.split("\n## v100\n")[1].split("\n## ", maxsplit=1)[0]
    models = [line.split("|")[1].strip() for line in v100.splitlines() if line.startswith("|")][2:]
    assert models == ["tilenet", "tcl", "*XGBoost*"]
    assert v100.count("**0.900 ± 0.004**") == 5
    assert "189,510 | 1.00 MiB | 61 s | 100,000 |" in v100
    assert "- tcl: stopped at 3 epochs" in v100
    assert "| tcl | 0.880 ± 0.004 | 0.880 ± 0.004 | - |" in v100


def test_a_leaderboard_says_corpus_protocol_device_seeds_and_command() -> None:
    text = leaderboard_markdown(COMPARED)
    command = "python -m scripts.benchmarks models --json"
    assert f"Made by `{command}`, seeds 0, 1, 2, on epyc-turin, AMD EPYC, 2 cores." in text
    assert "| `v100` | tilenet | 0.900 | 0.900 | 0.990 | 0.850 | 0.800 |" in text
    assert "test tasks of k80" in text
    assert "Seeds: 0, 1, 2." in text.split("## v100")[1]
    assert "Seeds" not in text.split("## k80")[1]
