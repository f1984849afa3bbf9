"""Fixtures of the registry's tests: a mirror on loopback, a publisher of indexes, and checkpoints to list."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from mirror_server import MirrorServer, running
from registry_kit import Publisher
from tchub.hub.registry import Entry
from tchub.hub.registry.mirror import Mirror
from toy_checkpoints import publish

_VARIABLES = (
    *("TCHUB_MIRROR_TOKEN", "TCHUB_OFFLINE", "HF_HUB_OFFLINE", "TCHUB_SOURCES", "TCHUB_TRUSTED_KEYS"),
    *("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"),
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("urllib3.util.Retry._sleep_backoff", lambda self: None)


@pytest.fixture
def server() -> Iterator[MirrorServer]:
    with running() as mirror:
        yield mirror


@pytest.fixture
def entry(tmp_path: Path, server: MirrorServer) -> Entry:
    """A checkpoint that the mirror holds."""
    entry = publish(tmp_path / "zoo", "tcl-epyc")
    server.add(tmp_path / "zoo")
    return entry


@pytest.fixture
def source(server: MirrorServer) -> Mirror:
    """A client of the mirror that soon loses patience."""
    return Mirror(server.url, patience=0.4)


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    (tmp_path / "dest").mkdir()
    return tmp_path / "dest"


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path / "mirror")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache/index"


@pytest.fixture
def epyc(tmp_path: Path) -> Entry:
    return publish(tmp_path / "files", "tcl-epyc")


@pytest.fixture
def t4(tmp_path: Path) -> Entry:
    return publish(tmp_path / "files", "tcl-t4", feature_schema="tcl-gpu")
