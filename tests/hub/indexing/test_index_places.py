"""Where an index comes from: a static mirror, the Hub at one commit, the place that the user names."""

from __future__ import annotations

import mirror_server
import pytest
from hub_client import use_client
from hub_protocol import running as running_hub
from index_kit import kept
from tchub.hub.registry.errors import (
    NetworkError,
    NotInSourceError,
    OfflineError,
    SourceError,
    TokenError,
    UnknownSourceError,
)
from tchub.hub.registry.fields import MAX_BYTES
from tchub.hub.registry.index_place import open_place
from tchub.hub.registry.snapshot import Snapshot


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
