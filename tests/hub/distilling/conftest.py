"""Corpora and a knowledge base that every test of distilling reads and none changes: they are made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from distill_kit import make_base, make_corpora


@pytest.fixture(scope="session")
def corpora(tmp_path_factory) -> dict[str, Path]:
    return make_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture(scope="session")
def base(corpora, tmp_path_factory) -> Path:
    """A knowledge base of epyc and xeon."""
    return make_base(corpora, tmp_path_factory.mktemp("base") / "kb")
