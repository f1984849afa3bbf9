"""What the documents say is what the files hold: figures, commands, and the index of checkpoints."""

import json
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fake_tuning import SMALL_SEARCH
from tchub.hub.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
# What scripts/zoo/build.py writes beside the benchmarks: facts of what it made, no figures of a run.
RECORDS = {"corpora", "zoo"}
BENCHMARKS = sorted(f for f in (ROOT / "docs" / "benchmarks").glob("*.json") if f.stem not in RECORDS)
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("script", ["benchmarks.report.__main__", "zoo.index"])
def test_generated_files_agree_with_their_sources(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        import_module(f"scripts.{script}").main(["--check"])
    assert end.value.code == 0, capsys.readouterr().err


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_every_benchmark_names_machine_command_seeds_and_summary(path: Path) -> None:
    document = json.loads(path.read_text())
    assert document["benchmark"] == path.stem
    _, _, module, *arguments = document["command"].split()
    assert module in ("scripts.fuzz", "scripts.kills") or (module, arguments[0]) == ("scripts.benchmarks", path.stem)
    assert {"seeds", "machine", "summary", "details", "date"} <= set(document)
    assert document["summary"]


def test_files_that_documents_and_docstrings_name_exist() -> None:
    texts = [*DOCUMENTS, *(file for room in ("hub", "zoo", "cards", "scripts") for file in (ROOT / room).rglob("*.py"))]
    named = {(path.name, name) for path in texts for name in re.findall(r"tests/[a-z_0-9/]+\.py", path.read_text())}
    assert len(named) > 50
    assert not {one for one in named if not (ROOT / one[1]).is_file()}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_the_documents_exist(path: Path) -> None:
    told = set(re.findall(r"(?m)^(?:\$ )?tchub ([a-z]+)", path.read_text()))
    assert told <= set(COMMANDS)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_zygote")
def test_the_readmes_own_network_tunes_loads_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_charts: None
) -> None:
    import torch
    from tchub.hub.networks import latency, rivals
    from tchub.hub.tuning import tune

    in_a_process = latency._ask

    def ask(lines: Iterable[str], module: str, *rest: Any) -> Any:
        """Run networks in this process until they are tuned; a process of its own compares the tuned one."""
        first, second = lines
        if "tuned" not in json.loads(second)["libraries"]:
            request = json.loads(first)
            return import_module(module).answer(request | json.loads(second), rivals.ReferenceNetwork(request))
        return in_a_process((first, second), module, *rest)

    monkeypatch.setattr(latency, "_ask", ask)
    monkeypatch.chdir(tmp_path)
    for folder in ("HOME", "CACHE"):
        monkeypatch.setenv(f"TCHUB_{folder}", str(tmp_path / folder.lower()))
    monkeypatch.setattr(tune, "SECONDS", 0.5)
    names = run_of_the_readme("Your own network", "trials=64", "trials=2, search=SMALL_SEARCH")
    torch.testing.assert_close(names["y"], names["module"](names["x"]), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_zygote")
def test_the_readmes_own_metaschedule_call_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TCHUB_HOME", str(tmp_path / "home"))
    names = run_of_the_readme("Five examples", " 200, num_trials_per_iter=16", " 4, num_trials_per_iter=4")
    assert names["schedule"].mod is not None


def run_of_the_readme(section: str, old: str, new: str) -> dict[str, Any]:
    """Run the Python of a section, with few trials and a small search; return its names."""
    script = re.search(rf"## {section}.*?```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert script is not None
    assert old in script[1]
    names: dict[str, Any] = {"SMALL_SEARCH": SMALL_SEARCH}
    exec(script[1].replace(old, new), names)
    return names


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_the_documents_link_exist(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text())
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing
