"""Where the mirror of these tests has its checkpoint, and what a client got of it."""

from __future__ import annotations

from pathlib import Path

VERSION = "tcl-epyc/1.0.0"
WEIGHTS = f"/{VERSION}/model.safetensors"


def arrived(dest: Path) -> dict[str, bytes]:
    """What was fetched, by the path that it has on the mirror."""
    return {f"/{VERSION}/{path.name}": path.read_bytes() for path in dest.iterdir()}
