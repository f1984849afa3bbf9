"""What a publication uploads: config, weights, metrics, the card made from them, and its plots."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...cards import render_card
from ...cards.plots import draw
from ..registry.entry import OPTIONAL_FILES, Entry, describe
from ..registry.files import CONFIG_FILE, WEIGHTS_FILE, read_json
from ..registry.names import Version

PLOTS = "plots/"  # where the card looks for them
_CARD, _METRICS = "README.md", "metrics.json"
_OURS = (CONFIG_FILE, WEIGHTS_FILE, *OPTIONAL_FILES)


@dataclass(frozen=True)
class Plan:
    """A checkpoint that is ready to go out.

    Attributes:
        entry: how an index lists it, but for the commit.
        folder: its files, and nothing else.
        plots: pictures of its card: path in the repository -> file.
    """

    entry: Entry
    folder: Path
    plots: Mapping[str, Path]

    @property
    def tag(self) -> str:
        """Of its version."""
        return f"v{self.entry.version}"

    @property
    def listed(self) -> dict[str, Path]:
        """What the index lists: verified after every fetch, and the same for good under a tag."""
        return {name: self.folder / name for name in self.entry.files}

    @property
    def files(self) -> dict[str, Path]:
        """All that is uploaded: path in the repository -> file."""
        return {**self.listed, **self.plots}

    def stale(self, there: Mapping[str, Any]) -> list[str]:
        """Of the files in the repository those of an older version that this one does not have."""
        return [name for name in there if (name in _OURS or name.startswith(PLOTS)) and name not in self.files]


def lay_out(source: Path, folder: Path, version: str | None = None) -> None:
    """Put a checkpoint's files into a new folder, as they go out: the card is rendered, the version is set.

    Args:
        source: the checkpoint's folder; it stays as it is.
        folder: where to; made here.
        version: to publish it as; None for its config's.

    Raises:
        IndexFileError: config.json or metrics.json is no JSON object.
        CheckpointNameError: not a version.
        CardError: a field of either has the wrong type.
    """
    folder.mkdir()
    for name in (CONFIG_FILE, WEIGHTS_FILE, _METRICS):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    config = read_json(folder / CONFIG_FILE)
    if not config:
        return  # what is missing is the check's to say
    if version is not None and config.get("version") != version:
        config["version"] = str(Version.parse(version))
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / _CARD).write_text(render_card(config, read_json(folder / _METRICS)), encoding="utf-8")


def make_plan(folder: Path, scratch: Path, repo: str) -> Plan:
    """What goes from a laid out folder to a repository.

    Args:
        folder: see `lay_out`.
        scratch: where the card's plots are drawn.
        repo: `org/name`.

    Raises:
        IndexFileError: it is no whole checkpoint, or a licence is not given.
    """
    config = read_json(folder / CONFIG_FILE)
    entry = describe(folder, str(config.get("name")), str(config.get("version")), sources=[f"hf://{repo}"])
    drawn = draw(read_json(folder / _METRICS), scratch / PLOTS)
    return Plan(entry, folder, {f"{PLOTS}{name}": scratch / PLOTS / name for name in drawn})
