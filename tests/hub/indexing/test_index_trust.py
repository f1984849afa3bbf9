"""What is fetched counts only when a trusted key vouches for it and it is neither older nor out of date."""

from __future__ import annotations

from datetime import timedelta

import pytest
from index_kit import kept, unchanged
from index_publisher import TODAY, YEAR, Publisher
from tchub.hub.registry import Index
from tchub.hub.registry.errors import (
    ExpiredIndexError,
    ExpiredKeyError,
    NotInSourceError,
    NoTrustedKeyError,
    RevokedKeyError,
    RollbackError,
    UnknownKeyError,
    WrongSignatureError,
)
from tchub.hub.registry.key_chain import CHAIN_FILE
from tchub.hub.registry.snapshot import SNAPSHOT_FILE, Snapshot, open_snapshot
from tchub.hub.registry.trust import KeySet
from tchub.zoo.errors import TchubError


def test_a_changed_byte_is_refused_before_anything_is_parsed(publisher, cache, epyc, monkeypatch):
    publisher.publish(epyc)
    path = publisher.root / "index.json"
    path.write_bytes(path.read_bytes().replace(b"tcl-epyc", b"tcl-evil"))
    monkeypatch.setattr(Index, "parse", lambda *_: pytest.fail("it was parsed"))
    with pytest.raises(WrongSignatureError):
        publisher.refresh(cache)


def test_a_missing_signature_is_refused(publisher, cache, epyc):
    publisher.publish(epyc)
    (publisher.root / "index.json.sig").unlink()
    with pytest.raises(NotInSourceError, match=r"index\.json\.sig"):
        publisher.refresh(cache)
    assert Snapshot.read(cache) is None


def test_an_index_of_a_stranger_is_refused(publisher, cache, epyc, tmp_path):
    publisher.publish(epyc)
    publisher.refresh(cache)
    stranger = Publisher.begin(tmp_path / "elsewhere")
    stranger.publish(epyc, serial=9)
    unchanged(cache, publisher.keys, lambda: stranger.refresh(cache, publisher.keys), UnknownKeyError)


def test_an_index_signed_by_an_expired_key_is_refused_but_what_was_fetched_before_stays(publisher, cache, epyc):
    publisher.publish(epyc)
    publisher.refresh(cache)
    late = TODAY + 2 * YEAR
    error = unchanged(cache, publisher.keys, lambda: publisher.refresh(cache, today=late), ExpiredKeyError)
    assert "2027-06-01" in error.message


def test_without_any_trusted_key_nothing_is_taken(publisher, cache, epyc):
    publisher.publish(epyc)
    with pytest.raises(NoTrustedKeyError) as caught:
        publisher.refresh(cache, KeySet())
    assert "TCHUB_TRUSTED_KEYS" in caught.value.remedy


def test_the_keys_are_rotated_on_the_way_and_remembered(publisher, cache, epyc):
    publisher.publish(epyc)
    publisher.refresh(cache)
    publisher.hand_on("second", by="first")
    publisher.hand_on("third", by="second", revoke=("first",))
    publisher.publish(epyc, serial=2, by="third")
    found = publisher.refresh(cache)
    assert (found.serial, found.keys) == (2, 3)
    for serial in (2, 3):
        (publisher.root / f"keys-{serial}.json").unlink()
    assert publisher.refresh(cache).keys == 3, "the chain is in the cache"
    publisher.publish(epyc, serial=3, by="first")
    unchanged(cache, publisher.keys, lambda: publisher.refresh(cache), RevokedKeyError)


def test_a_key_that_was_seen_to_be_taken_back_stays_taken_back(publisher, cache, epyc):
    publisher.publish(epyc)
    publisher.refresh(cache)
    publisher.hand_on("second", by="first", revoke=("first",))
    with pytest.raises(RevokedKeyError):
        publisher.refresh(cache)  # the index is still signed by the old key
    with pytest.raises(RevokedKeyError):
        kept(cache, publisher.keys)
    for path in publisher.root.glob("keys-2.*"):
        path.unlink()  # a thief who holds the mirror would rather that nobody knew
    with pytest.raises(RevokedKeyError):
        publisher.refresh(cache)
    publisher.publish(epyc, serial=2, by="second")
    found = publisher.refresh(cache)
    assert (found.serial, found.before) == (2, None)
    assert "taken back" in found.unusable


def test_a_damaged_chain_of_keys_is_followed_anew(publisher, cache, epyc):
    publisher.hand_on("second", by="first")
    publisher.publish(epyc, by="second")
    publisher.refresh(cache)
    for content in ("{", '{"format": 1, "links": {"2": ["a", "b"]}}', '{"format": 1, "links": {"two": []}}'):
        (cache / CHAIN_FILE).write_text(content)
        with pytest.raises(TchubError):
            kept(cache, publisher.keys)
        assert publisher.refresh(cache).unusable
        assert kept(cache, publisher.keys).entries == (epyc,)


def test_an_older_index_is_refused(publisher, cache, epyc):
    publisher.publish(epyc, serial=5)
    publisher.refresh(cache)
    publisher.publish(epyc, serial=4)
    error = unchanged(cache, publisher.keys, lambda: publisher.refresh(cache), RollbackError)
    assert (error.fields["serial"], error.fields["known"]) == (4, 5)
    assert str(cache / SNAPSHOT_FILE) in error.remedy


def test_two_indexes_of_one_serial_are_refused(publisher, cache, epyc, t4):
    publisher.publish(epyc)
    publisher.refresh(cache)
    publisher.publish(epyc, t4)
    unchanged(cache, publisher.keys, lambda: publisher.refresh(cache), RollbackError)


def test_an_index_after_its_last_day_is_refused_so_that_nobody_holds_newer_ones_back_for_long(publisher, cache, epyc):
    publisher.publish(epyc, expires=TODAY)
    assert publisher.refresh(cache).serial == 1
    with pytest.raises(ExpiredIndexError, match="was to be replaced by") as caught:
        publisher.refresh(cache, today=TODAY + timedelta(days=1))
    assert caught.value.fields["expires"] == TODAY.isoformat()
    assert open_snapshot(cache, publisher.keys).index.entries == (epyc,), "what was fetched stays in use"
