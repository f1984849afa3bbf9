"""A refreshed index counts only when the trusted keys vouch for it and it is neither older nor out of date."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hub_client import use_client
from hub_protocol import running as running_hub
from mirror_server import MirrorServer, endless, status
from registry_kit import Publisher, refused
from tchub import hub
from tchub.hub.registry import Index, parse_source
from tchub.hub.registry.errors import NotInSourceError
from tchub.hub.registry.trust import METADATA, REFRESHED, TrustedIndexes
from tchub.zoo.errors import TchubWarning
from tchub.zoo.files import StorageError


@pytest.fixture
def fetched(publisher, cache, epyc) -> Index:
    """The index that the client has."""
    index = publisher.publish(epyc, serial=5)
    publisher.refresh(cache)
    return index


@pytest.fixture
def unchanged(publisher, cache, fetched) -> Callable[[str], None]:
    """Refuse the next refresh with a reason; the index that was there stays."""

    def check(reason: str) -> None:
        with refused(reason):
            publisher.refresh(cache)
        assert publisher.client(cache).stored().parsed == fetched

    return check


def test_a_newer_index_is_fetched_checked_and_kept(publisher, cache, epyc, t4):
    publisher.publish(epyc, serial=3)
    first = publisher.refresh(cache)
    assert (first.serial, first.before, first.added) == (3, None, ("tcl-epyc@1.0.0",))
    index = publisher.publish(replace(epyc, deprecated="a leak"), t4, serial=4)
    second = publisher.refresh(cache)
    assert (second.before, second.added, second.deprecated) == (3, ("tcl-t4@1.0.0",), ("tcl-epyc@1.0.0",))
    assert publisher.client(cache).stored().parsed == index
    again = publisher.refresh(cache)
    assert (again.serial, again.before, again.added) == (4, 4, ())


def test_many_refreshes_at_once_leave_one_whole_index(publisher, cache, epyc):
    index = publisher.publish(epyc)
    with ThreadPoolExecutor(8) as pool:
        assert {one.serial for one in pool.map(lambda _: publisher.refresh(cache), range(16))} == {1}
    assert publisher.client(cache).stored().parsed == index
    assert sorted(path.name for path in cache.iterdir()) == [".lock", METADATA, REFRESHED]


# Signatures and keys


def test_a_changed_byte_is_refused_before_anything_is_parsed(publisher, cache, epyc, monkeypatch):
    publisher.publish(epyc)
    path = publisher.root / "index.json"
    path.write_bytes(path.read_bytes().replace(b"tcl-epyc", b"tcl-evil"))
    monkeypatch.setattr(Index, "parse", lambda *_: pytest.fail("it was parsed"))
    with refused("content", "is not what was signed"):
        publisher.refresh(cache)


def test_a_missing_signature_is_refused(publisher, cache, epyc):
    publisher.publish(epyc)
    (publisher.root / METADATA / "timestamp.json").unlink()
    with pytest.raises(NotInSourceError, match=r"has no metadata/timestamp\.json"):
        publisher.refresh(cache)
    assert publisher.client(cache).stored() is None


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 10_000, b'{"signed": {"_type": "timestamp"}, "signatures": []}'])
def test_damaged_metadata_is_refused(publisher, unchanged, content):
    (publisher.root / METADATA / "timestamp.json").write_bytes(content)
    unchanged("content")


def test_an_index_of_a_stranger_is_refused(publisher, cache, epyc, unchanged, tmp_path):
    stranger = Publisher(tmp_path / "elsewhere")
    for serial in (6, 7):
        stranger.publish(epyc, serial=serial)
    shutil.copytree(stranger.root, publisher.root, dirs_exist_ok=True)
    unchanged("signature")


def test_a_forged_root_is_refused(publisher, epyc, unchanged, tmp_path):
    stranger = Publisher(tmp_path / "elsewhere")
    stranger.publish(epyc, serial=6)
    stranger.publish(epyc, serial=7, trust=("second",))
    shutil.copy(stranger.root / METADATA / "2.root.json", publisher.root / METADATA)
    unchanged("signature")


def test_an_older_root_does_not_pass_for_a_newer_one(publisher, unchanged):
    shutil.copy(publisher.root / METADATA / "1.root.json", publisher.root / METADATA / "2.root.json")
    unchanged("rollback")


def test_without_any_trusted_key_nothing_is_taken(publisher, epyc):
    publisher.publish(epyc)
    with refused("keys") as caught:
        hub.refresh_index(publisher.root.as_uri())
    assert "TCHUB_TRUSTED_KEYS" in caught.value.remedy


def test_a_key_that_was_seen_to_be_taken_back_stays_taken_back(publisher, cache, epyc, fetched):
    thief = Publisher(publisher.root, {"first": publisher.key("first")}, publisher.trusted)
    before = {path: path.read_bytes() for path in (publisher.root / METADATA).iterdir()}
    publisher.publish(epyc, serial=6, trust=("second",))
    publisher.publish(epyc, serial=7, by=("second",), revoke=("first",))
    for path, data in before.items():
        path.write_bytes(data)  # the new roots are there, all else is signed by the old key
    with refused("signature"):
        publisher.refresh(cache)
    with refused("signature"):
        publisher.client(cache).stored()
    for version in (2, 3):  # a thief who holds the mirror would rather that nobody knew
        (publisher.root / METADATA / f"{version}.root.json").unlink()
    thief.publish(epyc, serial=9)
    with refused("signature"):
        publisher.refresh(cache)


# Older, out of date, changed, too large


def test_an_older_state_is_refused(publisher, epyc, cache, unchanged, tmp_path):
    shutil.copytree(publisher.root, tmp_path / "old")
    index = publisher.publish(epyc, serial=6)
    publisher.refresh(cache)
    shutil.rmtree(publisher.root)
    shutil.move(tmp_path / "old", publisher.root)
    with refused("rollback"):
        publisher.refresh(cache)
    assert publisher.client(cache).stored().parsed == index


def test_an_index_after_its_last_day_is_refused_so_that_nobody_holds_newer_ones_back_for_long(publisher, unchanged):
    publisher.sign(days=-1)
    unchanged("expired")


def test_a_version_whose_weights_change_is_refused(publisher, cache, epyc, unchanged, tmp_path):
    changed = replace(epyc, files=epyc.files | {"model.safetensors": epyc.files["config.json"]})
    publisher.publish(changed, serial=6)
    unchanged("changed")
    with refused("changed"):
        publisher.refresh(tmp_path / "new", shipped=Index((epyc,)))
    publisher.publish(replace(epyc, files=epyc.files | {"README.md": epyc.files["config.json"]}), serial=7)
    assert publisher.refresh(cache).serial == 7, "a card may change"


def test_a_cache_that_cannot_be_written_is_a_typed_error_and_keeps_what_it_has(
    publisher, cache, epyc, fetched, full_disk
):
    publisher.publish(epyc, serial=6)

    full_disk("tchub.hub.registry.trust.write_atomically")
    with pytest.raises(StorageError) as caught:
        publisher.refresh(cache)
    assert "TCHUB_CACHE" in caught.value.remedy


# Sources


@pytest.fixture
def mirror(publisher, server, epyc) -> MirrorServer:
    """A mirror that holds what was published."""
    publisher.publish(epyc)
    server.add(publisher.root)
    return server


def test_a_mirror_is_asked_for_the_index_only_when_it_changed(publisher, cache, epyc, mirror):
    for _ in range(2):
        publisher.refresh(cache, parse_source(mirror.url))
    assert mirror.paths.count("/index.json") == 1
    assert publisher.client(cache).stored().parsed == Index((epyc,), 1)
    publisher.publish(epyc, serial=2)
    mirror.add(publisher.root)
    assert publisher.refresh(cache, parse_source(mirror.url)).serial == 2


@pytest.mark.parametrize(("reason", "answers"), [("content", [endless]), ("network", [status(500)] * 4)])
def test_a_mirror_that_sends_too_much_or_fails_is_a_typed_error(publisher, cache, mirror, reason, answers):
    mirror.answers = [status(404), *answers]
    with refused(reason):
        publisher.refresh(cache, parse_source(mirror.url))
    assert publisher.client(cache).stored() is None


def test_a_mirror_that_refuses_what_is_not_there_ends_the_chain_of_roots(publisher, cache, mirror):
    mirror.answers = [status(403)]
    assert publisher.refresh(cache, parse_source(mirror.url)).serial == 1
    assert mirror.paths[0] == "/metadata/2.root.json"
    mirror.token = "secret"
    with refused("token"):
        publisher.refresh(cache, parse_source(mirror.url))


def test_the_hub_is_read_at_one_commit(publisher, cache, epyc, tmp_path, monkeypatch):
    publisher.publish(epyc)
    with running_hub() as server:
        use_client(monkeypatch, tmp_path, server.url)
        commit = server.add("tchub/index", _files(publisher.root))
        source = parse_source("hf://tchub/index")
        assert source.head == commit
        publisher.publish(epyc, serial=2, trust=("second",))
        newer = server.add("tchub/index", _files(publisher.root))  # while the refresh is under way
        update = publisher.refresh(cache, source)
        assert (update.serial, update.keys, update.commit) == (1, 1, commit)
        assert publisher.refresh(cache, parse_source("hf://tchub/index")).commit == newer
        with pytest.raises(NotInSourceError, match="does not exist"):
            publisher.refresh(cache, parse_source("hf://tchub/nothing"))


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_hub_that_fails_or_hangs_or_is_a_login_page_is_a_typed_error(publisher, cache, mirror, tmp_path, monkeypatch):
    monkeypatch.setattr("tchub.hub.registry.network.ANSWER_SECONDS", 0.3)
    mirror.files["/api/models/tchub/index"] = b"<html>please log in</html>"
    with running_hub() as server:
        server.add("tchub/index", _files(publisher.root))
        server.faults.stall("/api/models/tchub/index", lost=True)
        for url, text in (("http://127.0.0.1:9", "could not be"), (server.url, "hangs"), (mirror.url, "could not be")):
            use_client(monkeypatch, tmp_path, url)
            with refused("network", text) as caught:
                publisher.refresh(cache, parse_source("hf://tchub/index"))
            assert "HF_ENDPOINT" in caught.value.remedy


def test_offline_nothing_is_asked(publisher, cache, epyc, monkeypatch):
    publisher.publish(epyc)
    monkeypatch.setenv("TCHUB_OFFLINE", "1")
    for source in ("hf://tchub/index", "https://mirror.example.org/tchub"):
        with refused("offline"):
            publisher.refresh(cache, parse_source(source))
    assert publisher.refresh(cache).serial == 1


# In use


@pytest.fixture
def user(tmp_path, publisher, epyc, t4, monkeypatch) -> Path:
    """A user's environment: a trusted root, a publisher's folder, and the wheel's index."""
    publisher.publish(t4, serial=2)
    (tmp_path / "root.json").write_bytes(publisher.trusted)
    monkeypatch.delenv("TCHUB_INDEX", raising=False)
    monkeypatch.setenv("TCHUB_TRUSTED_KEYS", str(tmp_path / "root.json"))
    monkeypatch.setenv("TCHUB_INDEX_SOURCE", publisher.root.as_uri())
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Index, "shipped", lambda: Index((epyc,), 1))
    return tmp_path


def test_a_refreshed_index_that_cannot_be_used_is_left_out_with_a_warning(user):
    hub.refresh_index()
    for damage in (lambda: (TrustedIndexes.default().folder / REFRESHED).write_text("{"), (user / "root.json").unlink):
        damage()
        with pytest.warns(TchubWarning, match="the refreshed index is left out: .*tchub index refresh"):
            assert [entry.name for entry in hub.list_checkpoints()] == ["tcl-epyc"]


def test_each_root_has_a_state_of_its_own(publisher, epyc, t4, tmp_path, monkeypatch):
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Index, "shipped", Index)
    other = Publisher(tmp_path / "other")
    for one, entry in ((publisher, epyc), (other, t4)):
        one.publish(entry)
        (tmp_path / "root.json").write_bytes(one.trusted)
        monkeypatch.setenv("TCHUB_TRUSTED_KEYS", str(tmp_path / "root.json"))
        assert hub.refresh_index(one.root.as_uri()).before is None
        assert TrustedIndexes.default().stored().parsed.entries == (entry,)


def test_an_own_index_file_stands_in_place_of_both(user, monkeypatch):
    hub.refresh_index()
    (user / "own.json").write_text(json.dumps({"format": 1, "checkpoints": []}))
    monkeypatch.setenv("TCHUB_INDEX", str(user / "own.json"))
    assert hub.list_checkpoints() == []
