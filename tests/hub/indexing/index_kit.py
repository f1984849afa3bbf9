"""What a client has after a refresh, and after one that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from tchub.hub.registry import Index
from tchub.hub.registry.key_chain import read_chain
from tchub.hub.registry.rotation import follow
from tchub.hub.registry.snapshot import open_snapshot
from tchub.hub.registry.trust import KeySet
from tchub.zoo.errors import TchubError


def kept(cache: Path, root: KeySet) -> Index:
    """The index that a client has after a refresh, by the keys that it trusts by now."""
    keys, _ = follow(root, read_chain(cache).get, "cache", None)
    return open_snapshot(cache, keys).index


def unchanged(cache: Path, keys: KeySet, call, error: type[TchubError]) -> TchubError:
    """The error of a refresh, after which the index is the one that was there before."""
    before = kept(cache, keys)
    with pytest.raises(error) as caught:
        call()
    assert kept(cache, keys) == before
    assert caught.value.remedy
    return caught.value
