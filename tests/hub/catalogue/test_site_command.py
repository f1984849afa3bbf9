"""`tchub site`, the command: what it writes, says and refuses, and what of it ships."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from site_pages import page
from tchub.hub.cli import main
from tchub.hub.registry import Registry
from tchub.hub.registry.listing import published, registry_of
from tchub.hub.registry.errors import UnknownSourceError
from toy_checkpoints import publish, write_index


def test_the_command_writes_the_catalogue_and_says_where(
    registry: Registry, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    write_index(registry.wheel / "index.json", *registry.index.entries)
    arguments = ["--out", str(tmp_path / "out"), "--source", registry.wheel.as_uri(), "--title", "Ours"]
    assert main(["site", *arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checkpoints"] == ["tcl-a100", "tcl-epyc", "tilenet-epyc"]
    assert page(Path(told["index"])).one("h1").text == "Ours"
    assert main(["site", *arguments]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == told["index"]
    assert "0 of 7 files written" in said.err


def test_an_index_of_its_own_is_shown_without_cards(registry: Registry, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    index = write_index(tmp_path / "other.json", publish(tmp_path / "elsewhere", "tlp-epyc"))
    (one,) = published(registry_of(index))
    assert (one.entry.id, one.card) == ("tlp-epyc@1.0.0", "")


def test_a_source_that_is_no_folder_is_refused() -> None:
    with pytest.raises(UnknownSourceError):
        registry_of(source="hf://org/name")


def test_a_foreign_folder_is_said_with_a_remedy(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["site", "--out", str(tmp_path)]) == 1
    assert "remedy: give --out a new folder" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["site"]])
def test_help_has_examples(arguments: list[str], capsys: Any) -> None:
    assert main([*arguments, "--help"]) == 0
    assert "tchub site --out" in capsys.readouterr().out.split("Examples:")[1]


def test_templates_style_sheet_and_script_are_in_the_wheel() -> None:
    root = Path(__file__).resolve().parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["tchub.hub"]
    packed = {path for pattern in patterns for path in (root / "hub").glob(pattern)}
    assert set((root / "hub" / "site" / "templates").iterdir()) <= packed
