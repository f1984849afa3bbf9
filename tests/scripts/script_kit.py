"""Modules of `scripts/` for a test."""

from __future__ import annotations

import importlib
from typing import Any

import pytest


def scripts_fixture(**modules: str) -> Any:
    """Return a fixture: a dictionary of imported modules of `scripts`, by a short name."""

    @pytest.fixture(scope="module")
    def scripts() -> dict[str, Any]:
        return {short: importlib.import_module(f"scripts.{name}") for short, name in modules.items()}

    return scripts
