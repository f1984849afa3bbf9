"""A static mirror on this machine that holds one checkpoint, and a client that soon loses patience."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirror_server import running
from tchub.hub.registry import Entry
from tchub.hub.registry.mirror import Mirror
from toy_checkpoints import publish


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in (
        "TCHUB_MIRROR_TOKEN",
        "TCHUB_OFFLINE",
        "HF_HUB_OFFLINE",
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
        "TCHUB_SOURCES",
        "NO_PROXY",
        "no_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("urllib3.util.Retry._sleep_backoff", lambda self: None)


@pytest.fixture
def server():
    with running() as mirror:
        yield mirror


@pytest.fixture
def entry(tmp_path, server) -> Entry:
    entry = publish(tmp_path / "zoo", "tcl-epyc")
    server.add(tmp_path / "zoo")
    return entry


@pytest.fixture
def source(server) -> Mirror:
    return Mirror(server.url, patience=0.4)


@pytest.fixture
def dest(tmp_path) -> Path:
    (tmp_path / "dest").mkdir()
    return tmp_path / "dest"
