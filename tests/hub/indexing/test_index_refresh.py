"""`refresh`: what is fetched counts only when it is vouched for and no older, and nothing is lost when it is not."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import mirror_server
import pytest
from hub_client import use_client
from hub_protocol import running as running_hub
from index_publisher import TODAY, YEAR, Publisher
from tchub import hub
from tchub.hub.registry import Index
from tchub.hub.registry.errors import (
    ExpiredIndexError,
    ExpiredKeyError,
    ImmutableVersionError,
    IndexFileError,
    NetworkError,
    NotInSourceError,
    NoTrustedKeyError,
    OfflineError,
    RevokedKeyError,
    RollbackError,
    SourceError,
    StoreError,
    TokenError,
    UnknownKeyError,
    UnknownSourceError,
    WrongSignatureError,
)
from tchub.hub.registry.fields import MAX_BYTES
from tchub.hub.registry.index_place import open_place
from tchub.hub.registry.key_chain import CHAIN_FILE, read_chain
from tchub.hub.registry.rotation import follow
from tchub.hub.registry.signed_file import write_keys
from tchub.hub.registry.snapshot import SNAPSHOT_FILE, Snapshot, open_snapshot
from tchub.hub.registry.trust import KeySet
from tchub.zoo.errors import TchubError, TchubWarning
from toy_checkpoints import publish


@pytest.fixture
def publisher(tmp_path) -> Publisher:
    return Publisher.begin(tmp_path / "mirror")


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache/index"


@pytest.fixture
def epyc(tmp_path):
    return publish(tmp_path / "files", "tcl-epyc")


@pytest.fixture
def t4(tmp_path):
    return publish(tmp_path / "files", "tcl-t4", feature_schema="tcl-gpu")


def kept(cache: Path, root: KeySet) -> Index:
    """The index that a client has after a refresh, by the keys that it trusts by now."""
    keys, _ = follow(root, read_chain(cache).get, "cache", None)
    return open_snapshot(cache, keys).index


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


def unchanged(cache: Path, keys: KeySet, call, error: type[TchubError]) -> TchubError:
    """The error of a refresh, after which the index is the one that was there before."""
    before = kept(cache, keys)
    with pytest.raises(error) as caught:
        call()
    assert kept(cache, keys) == before
    assert caught.value.remedy
    return caught.value


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


def test_an_older_index_is_refused(publisher, cache, epyc):
    publisher.publish(epyc, serial=5)
    publisher.refresh(cache)
    publisher.publish(epyc, serial=4)
    error = unchanged(cache, publisher.keys, lambda: publisher.refresh(cache), RollbackError)
    assert (error.fields["serial"], error.fields["known"]) == (4, 5)
    assert str(cache / SNAPSHOT_FILE) in error.remedy


def test_an_index_after_its_last_day_is_refused_so_that_nobody_holds_newer_ones_back_for_long(publisher, cache, epyc):
    publisher.publish(epyc, expires=TODAY)
    assert publisher.refresh(cache).serial == 1
    with pytest.raises(ExpiredIndexError, match="was to be replaced by") as caught:
        publisher.refresh(cache, today=TODAY + timedelta(days=1))
    assert caught.value.fields["expires"] == TODAY.isoformat()
    assert open_snapshot(cache, publisher.keys).index.entries == (epyc,), "what was fetched stays in use"


def test_two_indexes_of_one_serial_are_refused(publisher, cache, epyc, t4):
    publisher.publish(epyc)
    publisher.refresh(cache)
    publisher.publish(epyc, t4)
    unchanged(cache, publisher.keys, lambda: publisher.refresh(cache), RollbackError)


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


def test_a_mirror_is_asked_only_for_what_changed(publisher, cache, epyc):
    index = publisher.publish(epyc)
    with mirror_server.running() as mirror:
        mirror.add(publisher.root)
        publisher.refresh(cache, place=open_place(mirror.url))
        etag = Snapshot.read(cache).etag
        publisher.refresh(cache, place=open_place(mirror.url))
        asked = [headers.get("if-none-match") for path, headers in mirror.seen if path == "/index.json"]
        assert asked == [None, etag]
        assert kept(cache, publisher.keys) == index
        publisher.publish(epyc, serial=2)
        mirror.add(publisher.root)
        assert publisher.refresh(cache, place=open_place(mirror.url)).serial == 2


def test_a_mirror_that_refuses_what_is_not_there_ends_the_chain_of_keys(publisher, cache, epyc):
    publisher.publish(epyc)
    with mirror_server.running() as mirror:
        mirror.add(publisher.root)
        mirror.answers = [mirror_server.status(403)]
        assert publisher.refresh(cache, place=open_place(mirror.url)).serial == 1
        assert mirror.paths[0] == "/keys-2.json"
        mirror.token = "secret"
        with pytest.raises(TokenError):
            publisher.refresh(cache, place=open_place(mirror.url))


def test_a_mirror_that_sends_too_much_or_fails_is_a_typed_error(publisher, cache, epyc):
    publisher.publish(epyc)
    with mirror_server.running() as mirror:
        mirror.add(publisher.root)
        mirror.answers += [mirror_server.status(404), mirror_server.endless]
        with pytest.raises(SourceError, match=f"more than {MAX_BYTES} bytes"):
            publisher.refresh(cache, place=open_place(mirror.url))
        mirror.answers += [mirror_server.status(404), mirror_server.status(410)]
        with pytest.raises(SourceError):
            publisher.refresh(cache, place=open_place(mirror.url))
    assert Snapshot.read(cache) is None


def test_the_hub_is_read_at_one_commit(publisher, cache, epyc, tmp_path, monkeypatch):
    publisher.hand_on("second", by="first")
    publisher.publish(epyc, by="second")
    with running_hub() as server:
        use_client(monkeypatch, tmp_path, server.url)
        commit = server.add("tchub/index", publisher.root)
        place = open_place("hf://tchub/index")
        publisher.publish(epyc, serial=2, by="first")
        newer = server.add("tchub/index", publisher.root)  # while the refresh is under way
        found = publisher.refresh(cache, place=place)
        assert (found.serial, found.keys, found.commit) == (1, 2, commit)
        assert found.date
        assert publisher.refresh(cache, place=open_place("hf://tchub/index")).commit == newer
        with pytest.raises(NotInSourceError, match="does not exist"):
            open_place("hf://tchub/nothing")


def test_an_oversize_file_on_the_hub_is_not_fetched(publisher, cache, tmp_path, monkeypatch):
    with running_hub() as server:
        use_client(monkeypatch, tmp_path, server.url)
        server.add("tchub/index", {"index.json": b" " * (MAX_BYTES + 1)})
        with pytest.raises(SourceError, match="no more than"):
            publisher.refresh(cache, place=open_place("hf://tchub/index"))
        assert not [line for line in server.requests if line.startswith("GET") and line.endswith("index.json")]


def test_a_hub_that_fails_is_a_typed_error(publisher, tmp_path, monkeypatch):
    use_client(monkeypatch, tmp_path, "http://127.0.0.1:9")
    with pytest.raises(NetworkError):
        open_place("hf://tchub/index")


@pytest.mark.parametrize("what", ["/api/models/tchub/index", "index.json"])
def test_a_hub_that_hangs_is_not_waited_for_for_ever(publisher, cache, tmp_path, monkeypatch, what):
    monkeypatch.setattr("tchub.hub.registry.index_place._SECONDS", 0.3)
    with running_hub() as server:
        use_client(monkeypatch, tmp_path, server.url)
        server.add("tchub/index", {"index.json": b"{}"})
        server.faults.stall(what, lost=True)
        with pytest.raises(NetworkError, match="hangs, or is too slow"):
            publisher.refresh(cache, place=open_place("hf://tchub/index"))


def test_a_login_page_in_the_hubs_place_is_a_typed_error(tmp_path, monkeypatch):
    with mirror_server.running() as server:
        use_client(monkeypatch, tmp_path, server.url)
        server.files["/api/models/tchub/index"] = b"<html>please log in</html>"
        with pytest.raises(NetworkError) as caught:
            open_place("hf://tchub/index")
        assert "HF_ENDPOINT" in caught.value.remedy


def test_offline_the_hub_is_not_asked(monkeypatch):
    monkeypatch.setenv("TCHUB_OFFLINE", "1")
    with pytest.raises(OfflineError):
        open_place("hf://tchub/index")


def test_the_environment_names_the_place_and_the_user_overrules_it(publisher, monkeypatch):
    monkeypatch.setenv("TCHUB_INDEX_SOURCE", publisher.root.as_uri())
    assert open_place().uri == publisher.root.as_uri()
    assert open_place("file:///elsewhere").uri == "file:///elsewhere"
    with pytest.raises(UnknownSourceError):
        open_place("ftp://example.org")


@pytest.fixture
def user(tmp_path, publisher, epyc, t4, monkeypatch) -> Path:
    """A user's environment: keys that are good on any day, a publisher's folder, and the wheel's index."""
    for name in ("TCHUB_INDEX", "TCHUB_SOURCES"):
        monkeypatch.delenv(name, raising=False)
    write_keys(tmp_path / "keys.json", publisher.keys)
    monkeypatch.setenv("TCHUB_TRUSTED_KEYS", str(tmp_path / "keys.json"))
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tchub.hub.registry.trust.today", lambda: TODAY)
    monkeypatch.setattr(Index, "shipped", lambda: Index((epyc,), 1))
    publisher.publish(t4, serial=2, aliases={"tcl-turing": "tcl-t4"})
    return tmp_path


def test_a_refreshed_index_is_used_beside_the_wheels(user, publisher):
    assert [entry.name for entry in hub.list_checkpoints()] == ["tcl-epyc"]
    hub.refresh_index(publisher.root.as_uri())
    assert [entry.name for entry in hub.list_checkpoints()] == ["tcl-epyc", "tcl-t4"]
    with pytest.warns(TchubWarning, match="tcl-turing is called tcl-t4 now"):
        assert hub.resolve("tcl-turing").entry.name == "tcl-t4"


def test_a_refreshed_index_that_cannot_be_used_is_left_out_with_a_warning(user, publisher, cache):
    hub.refresh_index(publisher.root.as_uri())
    for damage in (lambda: (cache / SNAPSHOT_FILE).write_text("{"), (user / "keys.json").unlink):
        damage()
        with pytest.warns(TchubWarning, match="the refreshed index is left out: .*tchub index refresh"):
            assert [entry.name for entry in hub.list_checkpoints()] == ["tcl-epyc"]


def test_an_own_index_file_stands_in_place_of_both(user, publisher, monkeypatch):
    hub.refresh_index(publisher.root.as_uri())
    (user / "own.json").write_text(json.dumps({"format": 1, "checkpoints": []}))
    monkeypatch.setenv("TCHUB_INDEX", str(user / "own.json"))
    assert hub.list_checkpoints() == []
