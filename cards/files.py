"""Writing text so that no reader ever sees half of it."""

from __future__ import annotations

from pathlib import Path

from ..zoo.files import write_atomically


def write_text(path: Path, text: str) -> None:
    """Replaces one file whole; makes its folder when needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
