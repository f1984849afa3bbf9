"""Fixtures of the tests of adaptation: an untrained base, and one run that several of them look at."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from adapt_kit import SMALL, Lab, run, stored
from tchub.hub.api import CheckpointChoice
from tchub.hub.registry import Registry
from tchub.zoo.models import create


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models of a few thousand weights: a second thread would only wait for the first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> CheckpointChoice:
    """An untrained model: whatever it learns, it learns from this machine."""
    torch.manual_seed(3)
    return stored(tmp_path_factory.mktemp("base"), "tcl-epyc", create("tcl", **SMALL))


@pytest.fixture
def quick_distilling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corpora are distilled into the base in one epoch a phase."""
    from tchub.zoo.adapt.continual import ContinualConfig, DistillConfig

    quick = ContinualConfig(learn_epochs=1, distill_epochs=1, fisher_groups=2)
    monkeypatch.setattr(DistillConfig, "phases", lambda *args: quick)


@pytest.fixture(scope="session")
def adapted(base: CheckpointChoice, tmp_path_factory: pytest.TempPathFactory):
    """One run that several tests look at: result, lab and folder."""
    work = tmp_path_factory.mktemp("work")
    lab = Lab(fails=lambda c: c.key.startswith("(64,"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TCHUB_HOME", str(work / "home"))
        patch.setenv("TCHUB_CACHE", str(work / "cache"))
        result = run(base, lab, work, rounds=3)
        entry = Registry.default().resolve("tcl-epyc+local").entry
    return result, lab, work, entry
