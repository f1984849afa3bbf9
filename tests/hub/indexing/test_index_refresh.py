"""`refresh`: a newer index is kept whole, and one that cannot be read or stored costs nothing that was there."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from index_kit import kept, unchanged
from tchub.hub.registry import Index
from tchub.hub.registry.errors import ImmutableVersionError, IndexFileError, SourceError, StoreError
from tchub.hub.registry.fields import MAX_BYTES
from tchub.hub.registry.snapshot import SNAPSHOT_FILE


def test_a_newer_index_is_fetched_checked_and_kept(publisher, cache, epyc, t4):
    publisher.publish(epyc, serial=3)
    first = publisher.refresh(cache)
    assert (first.serial, first.before, first.added) == (3, None, ("tcl-epyc@1.0.0",))
    index = publisher.publish(replace(epyc, deprecated="a leak"), t4, serial=4)
    second = publisher.refresh(cache)
    assert (second.before, second.added, second.deprecated) == (3, ("tcl-t4@1.0.0",), ("tcl-epyc@1.0.0",))
    assert kept(cache, publisher.keys) == index
    assert second.key == publisher.keys.keys[0].id


def test_the_same_index_again_changes_nothing(publisher, cache, epyc):
    publisher.publish(epyc)
    publisher.refresh(cache)
    again = publisher.refresh(cache)
    assert (again.serial, again.before, again.added) == (1, 1, ())


def test_many_refreshes_at_once_leave_one_whole_index(publisher, cache, epyc):
    index = publisher.publish(epyc)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: publisher.refresh(cache), range(16)))
    assert {one.serial for one in found} == {1}
    assert kept(cache, publisher.keys) == index
    assert sorted(path.name for path in cache.iterdir()) == [".lock", SNAPSHOT_FILE]


def test_a_version_whose_weights_change_is_refused(publisher, cache, epyc, tmp_path):
    publisher.publish(epyc)
    publisher.refresh(cache)
    changed = replace(epyc, files=epyc.files | {"model.safetensors": epyc.files["config.json"]})
    publisher.publish(changed, serial=2)
    unchanged(cache, publisher.keys, lambda: publisher.refresh(cache), ImmutableVersionError)
    with pytest.raises(ImmutableVersionError):
        publisher.refresh(tmp_path / "new", wheel=Index((epyc,)))


def test_a_version_may_get_another_card(publisher, cache, epyc):
    publisher.publish(epyc)
    publisher.refresh(cache)
    publisher.publish(replace(epyc, files=epyc.files | {"README.md": epyc.files["config.json"]}), serial=2)
    assert publisher.refresh(cache).serial == 2


def test_an_index_that_is_too_large_is_not_read(publisher, cache):
    publisher.put("index.json", b"{}", by="first")
    os.truncate(publisher.root / "index.json", MAX_BYTES + 1)
    with pytest.raises(SourceError, match="larger than"):
        publisher.refresh(cache)


def test_a_signed_index_that_cannot_be_read_is_a_typed_error(publisher, cache):
    publisher.put("index.json", b'{"format": 99, "checkpoints": []}', by="first")
    with pytest.raises(IndexFileError, match="format 99"):
        publisher.refresh(cache)


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 9}', b'{"format": 1, "index": "{}"}', b"[]"])
def test_a_damaged_store_is_replaced_by_the_next_refresh(publisher, cache, epyc, content):
    publisher.publish(epyc)
    publisher.refresh(cache)
    (cache / SNAPSHOT_FILE).write_bytes(content)
    found = publisher.refresh(cache)
    assert found.unusable
    assert kept(cache, publisher.keys).entries == (epyc,)


def test_a_cache_that_cannot_be_written_is_a_typed_error_and_keeps_what_it_has(publisher, cache, epyc, monkeypatch):
    publisher.publish(epyc)
    publisher.refresh(cache)
    publisher.publish(epyc, serial=2)

    def full(path, data):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("tchub.hub.registry.snapshot.write_atomically", full)
    error = unchanged(cache, publisher.keys, lambda: publisher.refresh(cache), StoreError)
    assert "TCHUB_CACHE" in error.remedy
