"""The tests' Hub with an index, Ada who may write to `lab`, and a checkpoint that she trained."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hub_client import use_client
from hub_protocol import HubServer, running
from publish_kit import INDEX, Desk, train


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
