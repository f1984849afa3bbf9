"""A zoo in a folder, and running commands in this process."""

import json
from pathlib import Path
from typing import Any

import pytest
from tchub.hub.cli import main


def use_zoo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, index: Path) -> None:
    """Set this index, empty stores, a wide terminal, and no network."""
    folders = {"TCHUB_INDEX": index, "TCHUB_CACHE": tmp_path / "cache", "TCHUB_HOME": tmp_path / "home"}
    for name, path in folders.items():
        monkeypatch.setenv(name, str(path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("TCHUB_SOURCES", raising=False)


class Shell:
    """Runs commands; each call returns exit code, stdout and stderr, or the exit code and the JSON on stdout."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        code = main([str(one) for one in arguments])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def json(self, *arguments: object) -> tuple[int, Any]:
        code, out, _ = self(*arguments, "--json")
        return code, json.loads(out)
