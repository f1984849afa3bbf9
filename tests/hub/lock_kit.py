"""A project that pins checkpoints, and what its index lists meanwhile; the fixture is `project`."""

from __future__ import annotations

from pathlib import Path

from tchub.hub.registry import Entry, Index
from toy_checkpoints import publish, write_index


def release(project: Path, *entries: Entry) -> None:
    """What the index lists from now on."""
    write_index(project.parent / "index.json", *entries)


def newer(project: Path, version: str = "1.1.0") -> Entry:
    """Publish a newer version of tcl-epyc."""
    root = project.parent / "zoo"
    entry = publish(root, "tcl-epyc", version, entry={"sources": [root.as_uri()]})
    release(project, *Index.read(project.parent / "index.json").entries, entry)
    return entry
