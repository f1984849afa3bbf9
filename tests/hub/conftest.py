"""Fixtures that several tests of the hub share: a small task, its candidates, this machine's target."""

import os
from pathlib import Path
from typing import Any

import pytest

# Read when huggingface_hub is imported: its client reports to the public Hub, whatever HF_ENDPOINT says.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapted checkpoints and measured programs of a test stay with the test."""
    monkeypatch.setenv("TCHUB_HOME", str(tmp_path / "home"))


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A zoo of two checkpoints in a folder, empty stores, no network; the user is in an empty project."""
    from cli_kit import use_zoo
    from toy_checkpoints import publish, write_index

    root = tmp_path / "zoo"
    entries = [publish(root, name, entry={"sources": [root.as_uri()]}) for name in ("tcl-epyc", "tcl-t4")]
    use_zoo(monkeypatch, tmp_path, write_index(tmp_path / "index.json", *entries))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run commands in this process: a `Shell`."""
    from cli_kit import Shell

    return Shell(capsys)


@pytest.fixture(scope="session")
def target_dict() -> dict[str, Any]:
    """A target that any x86 or Arm machine can run: LLVM's generic CPU of the host's architecture.

    LLVM compiles in half the time without its optimisations, which no test is about.
    """
    return {"kind": "llvm", "num-cores": 1, "opt-level": 0}


@pytest.fixture(scope="session")
def target(target_dict: dict[str, Any]) -> Any:
    import tvm

    return tvm.target.Target(target_dict)


@pytest.fixture(scope="session")
def small_task() -> Any:
    """A matrix product of 32 x 24 x 16: large enough to have a choice of schedules, fast to compile."""
    from tchub.hub.networks.tasks import make_task
    from tchub.hub.networks.workloads import operator_module
    from tchub.zoo.corpus.workloads import OperatorSpec

    return make_task(operator_module(OperatorSpec("small", "dense", {"m": 32, "n": 24, "k": 16})), "small")


@pytest.fixture(scope="session")
def small_candidates(small_task: Any, target: Any) -> list[Any]:
    from tchub.hub.search.candidates import random_candidates

    return random_candidates(small_task, target, 12, seed=0)
