"""Someone who publishes an index, a client's cache of it, and two checkpoints to list."""

from __future__ import annotations

from pathlib import Path

import pytest
from index_publisher import Publisher
from toy_checkpoints import publish


@pytest.fixture
def publisher(tmp_path) -> Publisher:
    return Publisher.begin(tmp_path / "mirror")


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache/index"


@pytest.fixture
def epyc(tmp_path):
    return publish(tmp_path / "files", "tcl-epyc")


@pytest.fixture
def t4(tmp_path):
    return publish(tmp_path / "files", "tcl-t4", feature_schema="tcl-gpu")
