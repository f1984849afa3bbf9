"""Modules of `scripts/` for a test."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def scripts_fixture(*names: str, **by_short: str) -> Any:
    """A fixture of a module's tests: a dictionary of imported scripts by name, or by a shorter one."""
    wanted = dict(zip(names, names, strict=True)) | by_short

    @pytest.fixture(scope="module")
    def scripts() -> Iterator[dict[str, Any]]:
        # What a script imports in a function is looked for while the test runs.
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(SCRIPTS))
            yield {short: importlib.import_module(name) for short, name in wanted.items()}

    return scripts
