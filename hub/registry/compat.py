"""Can this release load a checkpoint? Judged from its index entry, before a file is fetched."""

from __future__ import annotations

from ...zoo.errors import TchubError
from .errors import IncompatibleCheckpointError
from .index import Entry

# Equal to `zoo.models`' own number (a test holds them together); importing that one would import torch.
CHECKPOINT_FORMAT = 1


def why_not(entry: Entry) -> str | None:
    """Why this tchub cannot load it, or None when it can."""
    if entry.format > CHECKPOINT_FORMAT:
        return f"its format {entry.format} is newer than this tchub's {CHECKPOINT_FORMAT}: upgrade tchub"
    if not _schema_known(entry.feature_schema):
        return f"its feature schema {entry.feature_schema} is unknown to this tchub: upgrade tchub"
    return None


def _schema_known(name: str) -> bool:
    from ...zoo.features import get_schema

    try:
        get_schema(name)
    except TchubError:
        return False
    return True


def require_loadable(entry: Entry) -> None:
    """Raise IncompatibleCheckpointError unless this tchub can load it."""
    reason = why_not(entry)
    if reason:
        raise IncompatibleCheckpointError(
            f"{entry.id} cannot be used: {reason}",
            remedy="pip install -U tchub, or choose an older version of the checkpoint",
            name=entry.name,
            version=entry.version,
            format=entry.format,
            feature_schema=entry.feature_schema,
        )
