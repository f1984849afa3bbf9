"""What the tests of checking and contributing share: one contribution that is finished."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from contribute_kit import FakeMeasurer, Finished, fake_machine, settings
from tchub.hub.contributing.walk import contribute


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models of a few thousand weights: a second thread would only wait for the first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One that several tests look at; those that change something take `mine`."""
    work = tmp_path_factory.mktemp("finished")
    measurer, notes = FakeMeasurer(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TCHUB_CACHE", str(work / "cache"))
        patch.setenv("TCHUB_HOME", str(work / "home"))
        fake_machine(patch, measurer)
        passed = contribute(settings(work / "mine"), note=notes.append)
    return Finished(work / "mine", passed, notes, measurer.paid)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured that was measured, and one baseline is enough."""
    fake_machine(monkeypatch, FakeMeasurer())
    monkeypatch.setattr("tchub.hub.publishing.evaluate.BASELINES", ("random",))


@pytest.fixture
def mine(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a finished contribution, to change: a copy goes on wherever it lies."""
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(finished.folder, tmp_path / "mine")
