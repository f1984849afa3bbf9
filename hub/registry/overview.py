"""Which indexes are in use on this machine, and who vouches for them."""

from __future__ import annotations

from typing import Any

from .index import Index, own_index
from .key_chain import index_folder, trusted_keys
from .snapshot import Opened, open_snapshot


def overview() -> dict[str, Any]:
    """As JSON: the indexes (None for one that is not in use), the trusted keys, old names, deprecated checkpoints.

    Raises:
        UntrustedError, IndexFileError: the refreshed index, the wheel's, or TCHUB_INDEX's cannot be used.
    """
    own = own_index()
    folder, shipped = index_folder(), Index.shipped()
    keys = trusted_keys(folder)
    opened = None if own else open_snapshot(folder, keys)
    used = Index.read(own) if own else shipped.joined(opened.index) if opened else shipped
    return {
        "override": own and _counts(used) | {"path": str(own)},
        "shipped": None if own else _counts(shipped),
        "refreshed": opened and _facts(opened),
        "keys": {"serial": keys.serial, "trusted": [key.as_dict() for key in keys.keys]},
        "aliases": dict(used.aliases),
        "deprecated": {entry.id: entry.deprecated for entry in used.entries if entry.deprecated},
    }


def _facts(opened: Opened) -> dict[str, Any]:
    told = {key: getattr(opened.snapshot, key) for key in ("source", "commit", "date", "fetched")}
    expires = opened.index.expires
    return _counts(opened.index) | told | {"key": opened.key.id, "expires": expires and expires.isoformat()}


def _counts(index: Index) -> dict[str, Any]:
    return {"serial": index.serial, "checkpoints": len(index.entries)}
