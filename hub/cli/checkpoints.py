"""A checkpoint that a command was given: a folder, or a name of the registry."""

from __future__ import annotations

from pathlib import Path


def find_folder(name_or_path: str) -> Path:
    """A folder when there is one of this name or it is written like a path, else that of a name of the registry.

    Raises:
        TchubError: there is no such checkpoint, or it cannot be fetched.
    """
    path = Path(name_or_path)
    if path.is_dir() or len(path.parts) > 1:
        return path
    from ..api import locate

    return locate(name_or_path).path
