"""The tests' Hub with an index, Ada who may write to `lab`, a checkpoint that she trained, a finished contribution."""

import shutil
from pathlib import Path

import pytest
from contribute_kit import FakeMeasurer, Finished, fake_machine, small_config
from hub_client import use_client
from hub_protocol import HubServer, running
from publish_kit import INDEX, Desk, train
from tchub.hub.publishing.contribute import contribute


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A contribution that several tests look at; those that change something take `mine`."""
    work = tmp_path_factory.mktemp("finished")
    measurer, notes = FakeMeasurer(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TCHUB_CACHE", str(work / "cache"))
        patch.setenv("TCHUB_HOME", str(work / "home"))
        fake_machine(patch, measurer)
        result = contribute(small_config(work / "mine"), note=notes.append)
    return Finished(work / "mine", result, notes, measurer.paid)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> FakeMeasurer:
    """A fake measurer, and one baseline in place of all."""
    measurer = FakeMeasurer()
    fake_machine(monkeypatch, measurer)
    monkeypatch.setattr("tchub.hub.publishing.evaluate.CARD_BASELINES", ("random",))
    return measurer


@pytest.fixture
def mine(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a finished contribution, to change: a copy goes on wherever it lies."""
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(finished.folder, tmp_path / "mine")


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> tuple[Path, Path]:
    """A checkpoint's folder and its corpus; not to be changed."""
    return train(tmp_path_factory.mktemp("training"))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The Hub that this process's client talks to, with Ada's token."""
    with running() as server:
        use_client(monkeypatch, tmp_path, server.url)
        server.add(INDEX, {"index.json": b'{"format": 1, "serial": 6, "checkpoints": []}'})
        monkeypatch.setenv("HF_TOKEN", server.login("hf_ada", "ada", "write", ("lab",)))
        yield server


@pytest.fixture
def desk(hub: HubServer, trained, tmp_path) -> Desk:
    """Ada's, with a copy of the checkpoint that may be changed."""
    return Desk(hub, shutil.copytree(trained[0], tmp_path / "run"), trained[1])
