"""A repository is for the versions of one checkpoint, whose tags are their numbers."""

from __future__ import annotations

from ...zoo.untrusted import parse_json
from ..registry.entry import Entry
from ..registry.files import CONFIG_FILE
from .errors import OtherCheckpointError
from .repository import Repository

_MAX_CONFIG_BYTES = 1 << 20


def require_own(entry: Entry, repository: Repository, head: str) -> None:
    """Refuse a repository that holds something else, whose files would be replaced and whose tags would mix.

    Args:
        entry: what is to be published.
        repository: where.
        head: its newest commit.

    Raises:
        OtherCheckpointError: its config.json is that of another checkpoint, or of no checkpoint.
    """
    config = repository.files(head).get(CONFIG_FILE)
    if config is None:
        return
    held = _name(repository.read(CONFIG_FILE, head)) if (config.size or 0) <= _MAX_CONFIG_BYTES else None
    if held != entry.name:
        raise OtherCheckpointError(
            f"{repository.id} holds {held or 'another model'}; a repository is for one checkpoint",
            remedy=f"publish it to a repository of its own: --repo {repository.id.partition('/')[0]}/{entry.name}",
            repo=repository.id,
            held=held,
        )


def _name(config: bytes) -> str | None:
    """The checkpoint's name in a config; None where it is not one of a checkpoint."""
    try:
        raw = parse_json(config)
    except ValueError:
        return None
    name = raw.get("name") if isinstance(raw, dict) and "feature_schema" in raw else None
    return name if isinstance(name, str) and name.isprintable() and len(name) <= 128 else None
