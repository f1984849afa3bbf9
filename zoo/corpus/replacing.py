"""Replacing the files of a corpus as one: `corpus.json` decides, and each table waits beside the old one until then.

A table that waits is named by its hash. Once `corpus.json` names that hash, the corpus is the new one, and whoever
opens it moves what still waits: a writer that is killed at any moment leaves the whole old corpus or the whole new one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .schema import PROGRAMS_FILE, TASKS_FILE

TABLES = (TASKS_FILE, PROGRAMS_FILE)


def waiting(table: Path, sha256: str) -> Path:
    """Where a table of this hash waits to become `table`."""
    return table.with_name(f".{table.name}.{sha256}")


def settle(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Move the tables that still wait, by what `corpus.json` says of the `files`, to their places."""
    for name in TABLES:
        sha256 = str(files.get(name, {}).get("sha256"))
        if sha256.isalnum():  # it may be anybody's file: no path
            with contextlib.suppress(OSError):  # none waits, or it cannot be moved: then the sizes are wrong
                os.replace(waiting(folder / name, sha256), folder / name)
