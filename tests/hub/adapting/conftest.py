"""What the tests of adapting share: an untrained base, and one run that several of them look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from adapt_kit import EPYC, SMALL, Lab, run
from tchub.hub.adaptation.tools import Base
from tchub.hub.registry import Registry, describe
from tchub.zoo.models import Checkpoint, CheckpointConfig, create


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models of a few thousand weights: a second thread would only wait for the first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TCHUB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """An untrained model: whatever it learns, it learns from this machine."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(3)
    config = CheckpointConfig(
        "tcl-epyc", "1.0.0", "tcl", create("tcl", **SMALL).config.as_dict(), "tcl-cpu", "epyc", tvm="0.27.0"
    )
    Checkpoint(config, create("tcl", **config.model), EPYC).save(folder)
    entry = describe(folder, "tcl-epyc", "1.0.0", weights_licence="Apache-2.0", data_licence="CC0-1.0")
    return Base(Checkpoint.load(folder), entry)


@pytest.fixture
def quick_distilling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corpora are distilled into the base in one epoch a phase."""
    from tchub.zoo.adapt.continual import ContinualConfig
    from tchub.zoo.adapt.knowledge_base import DistillSettings

    quick = ContinualConfig(learn_epochs=1, distill_epochs=1, fisher_groups=2)
    monkeypatch.setattr(DistillSettings, "phases", lambda *args: quick)


@pytest.fixture(scope="session")
def adapted(base: Base, tmp_path_factory: pytest.TempPathFactory):
    """One run that several tests look at: result, lab and folder."""
    work = tmp_path_factory.mktemp("work")
    lab = Lab(fails=lambda c: c.key.startswith("(64,"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TCHUB_HOME", str(work / "home"))
        patch.setenv("TCHUB_CACHE", str(work / "cache"))
        result = run(base, lab, work, rounds=3)
        entry = Registry.default().resolve("tcl-epyc+local").entry
    return result, lab, work, entry
