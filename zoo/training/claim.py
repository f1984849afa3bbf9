"""Whose run a folder holds: what two runs must have in common for one to go on where the other stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..models.files import write_folder
from ..plain_json import json_file
from .errors import ResumeError


def claim(path: Path, mine: dict[str, Any], remedy: str) -> None:
    """Writes down whose run the folder of a file holds, or sees that it is this one.

    Args:
        path: of the file; its folder is made.
        mine: what is this run's own, JSON-serialisable.
        remedy: of the error.

    Raises:
        ResumeError: the file is damaged, or tells of another run.
    """
    if not path.is_file():
        write_folder(path.parent, {path.name: json_file(mine)})
        return
    try:
        found = json.loads(path.read_bytes())
        differing = [key for key in mine if found.get(key) != mine[key]]
    except (ValueError, AttributeError):
        differing = ["(damaged)"]
    if differing:
        raise ResumeError(
            f"{path} is of another run: {', '.join(differing)}", remedy=remedy, path=str(path), reason="another run"
        )
