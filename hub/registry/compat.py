"""Can this release load a checkpoint? Judged from its index entry, before a file is fetched."""

from __future__ import annotations

from ...zoo.errors import TchubError
from .entry import Entry
from .errors import IncompatibleCheckpointError

# Equal to `zoo.models`' own number (a test holds them together); importing that one would import torch.
CHECKPOINT_FORMAT = 1


def why_not(entry: Entry) -> str | None:
    """Why this tchub cannot load it, or None when it can."""
    if entry.format > CHECKPOINT_FORMAT:
        return f"its format {entry.format} is newer than this tchub's {CHECKPOINT_FORMAT}: upgrade tchub"
    return _why_no_schema(entry)


def _why_no_schema(entry: Entry) -> str | None:
    from ...zoo.features import get_schema

    try:
        schema = get_schema(entry.feature_schema)
    except TchubError:
        return f"it reads features {entry.feature_schema}, which this tchub does not make: upgrade tchub"
    if schema.version != entry.feature_version:
        wanted = f"version {entry.feature_version} of the features {schema.name}"
        return f"it reads {wanted}, this tchub makes version {schema.version}"
    return None


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
