"""The Hugging Face Hub as a source: the real client against a server on loopback, every byte compared."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hub_server import HubServer, running
from tchub.hub.registry.entry import Entry
from tchub.hub.registry.errors import (
    GatedError,
    IntegrityError,
    NetworkError,
    NotInSourceError,
    OfflineError,
    RevisionMissingError,
    StoreError,
    TokenError,
)
from tchub.hub.registry.hf import HfSource
from toy_checkpoints import make_registry, publish

REPO = "zoo/tcl-epyc"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path):
    with running() as server:
        yield server


@pytest.fixture
def entry(tmp_path, hub) -> Entry:
    pinned = {"revision": COMMIT, "sources": [f"hf://{REPO}"]}
    entry = publish(tmp_path / "origin", "tcl-epyc", entry=pinned)
    hub.add(REPO, COMMIT, tmp_path / "origin" / "tcl-epyc" / "1.0.0")
    return entry


@pytest.fixture
def source(tmp_path, hub, monkeypatch) -> HfSource:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client's pauses between tries
    return HfSource(REPO, endpoint=hub.url, cache_dir=tmp_path / "hf")


@pytest.fixture
def dest(tmp_path) -> Path:
    (tmp_path / "dest").mkdir()
    return tmp_path / "dest"


def same_bytes(hub: HubServer, dest: Path) -> bool:
    files = hub.repos[REPO][COMMIT]
    return {path.name: path.read_bytes() for path in dest.iterdir()} == files


def test_all_files_arrive_at_the_pinned_commit(hub, entry, source, dest):
    source.fetch(entry, dest)
    assert same_bytes(hub, dest)
    assert all(f"/resolve/{COMMIT}/" in line or "/cdn/" in line for line in hub.requests)
    assert not any(path.is_symlink() for path in dest.iterdir())


def test_the_hubs_cache_is_used_the_second_time_and_offline(hub, entry, source, dest, tmp_path):
    source.fetch(entry, dest)
    hub.requests.clear()
    (tmp_path / "again").mkdir()
    source.fetch(entry, tmp_path / "again", offline=True)
    assert same_bytes(hub, tmp_path / "again")
    assert hub.requests == []


def test_a_damaged_hub_cache_is_refreshed(hub, entry, source, dest, tmp_path):
    source.fetch(entry, dest)
    blob = next(
        p for p in (tmp_path / "hf").rglob("blobs/*") if p.stat().st_size == entry.files["model.safetensors"].size
    )
    blob.write_bytes(b"\0" * blob.stat().st_size)
    hub.requests.clear()
    source.fetch(entry, dest)
    assert same_bytes(hub, dest)
    assert hub.downloads() == ["model.safetensors"]


@pytest.mark.parametrize("client_has_xet", [True, False])
def test_xet_storage_is_not_needed(entry, source, dest, client_has_xet, hub, monkeypatch):
    hub.xet = not client_has_xet  # a file in Xet storage for a client without it, and the other way round
    monkeypatch.setattr("huggingface_hub.file_download.is_xet_available", lambda: client_has_xet)
    source.fetch(entry, dest)
    assert same_bytes(hub, dest)


def test_offline_without_a_cache_says_how_to_get_it(hub, entry, source, dest):
    with pytest.raises(OfflineError, match="network is ruled out") as caught:
        source.fetch(entry, dest, offline=True)
    assert "without --offline" in caught.value.remedy
    assert hub.requests == []


def test_the_clients_own_offline_mode_is_honoured(hub, entry, source, dest, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineError):
        source.fetch(entry, dest)
    assert hub.requests == []


def test_an_entry_without_a_commit_is_refused_before_any_request(hub, tmp_path, source, dest):
    with pytest.raises(RevisionMissingError, match="pins no commit"):
        source.fetch(publish(tmp_path / "floating", "tcl-epyc"), dest)
    assert hub.requests == []


def test_a_gated_repository(hub, entry, source, dest):
    hub.gated.add(REPO)
    with pytest.raises(GatedError, match="terms") as caught:
        source.fetch(entry, dest)
    assert "hf auth login" in caught.value.remedy


def test_a_good_token_opens_a_gated_repository(hub, entry, source, dest, monkeypatch):
    hub.gated.add(REPO)
    hub.tokens.add("hf_good")
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    source.fetch(entry, dest)
    assert same_bytes(hub, dest)


def test_a_refused_token_is_not_taken_for_a_missing_repository(hub, entry, source, dest, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with pytest.raises(TokenError, match="refused the token"):
        source.fetch(entry, dest)


def test_a_token_without_permission(hub, entry, source, dest):
    hub.status = 403
    with pytest.raises(TokenError) as caught:
        source.fetch(entry, dest)
    assert caught.value.fields["status"] == 403


@pytest.mark.parametrize("make_missing", [lambda hub: hub.repos.clear(), lambda hub: hub.private.add(REPO)])
def test_a_missing_or_private_repository(hub, entry, source, dest, make_missing):
    make_missing(hub)
    with pytest.raises(NotInSourceError, match="does not exist, or is private"):
        source.fetch(entry, dest)


def test_a_commit_that_is_gone(hub, entry, source, dest):
    hub.repos[REPO] = {"f" * 40: {}}
    with pytest.raises(RevisionMissingError, match=COMMIT):
        source.fetch(entry, dest)


def test_a_file_that_is_gone(hub, entry, source, dest):
    del hub.repos[REPO][COMMIT]["metrics.json"]
    with pytest.raises(NotInSourceError, match=r"no file metrics\.json"):
        source.fetch(entry, dest)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_failing_or_busy_server(hub, entry, source, dest, status):
    hub.status = status
    with pytest.raises(NetworkError, match=str(status)) as caught:
        source.fetch(entry, dest)
    assert caught.value.remedy


def test_a_server_that_is_not_there(entry, source, dest, tmp_path):
    nobody = HfSource(REPO, endpoint="http://127.0.0.1:9", cache_dir=tmp_path / "hf")
    with pytest.raises(NetworkError, match="could not be fetched") as caught:
        nobody.fetch(entry, dest)
    assert "HF_ENDPOINT" in caught.value.remedy


def test_a_connection_that_breaks_leaves_nothing_that_is_taken_for_whole(hub, entry, source, dest, tmp_path):
    hub.truncate = 1
    with pytest.raises(NetworkError):
        source.fetch(entry, dest)
    assert list((tmp_path / "hf").rglob("snapshots/*/*")) == []
    assert list(dest.iterdir()) == []


def test_another_size_is_refused_before_a_byte_is_fetched(hub, entry, source, dest):
    hub.repos[REPO][COMMIT]["config.json"] += b" "
    with pytest.raises(IntegrityError, match="wrong size"):
        source.fetch(entry, dest)
    assert hub.downloads() == []


def test_other_bytes_of_the_same_size_never_reach_the_store(hub, entry, source, tmp_path, monkeypatch):
    data = hub.repos[REPO][COMMIT]["model.safetensors"]
    hub.repos[REPO][COMMIT]["model.safetensors"] = data[:-1] + b"\1"
    registry = make_registry(tmp_path, entry)
    monkeypatch.setattr("tchub.hub.registry.sources.HfSource", lambda repo: source)
    with pytest.raises(IntegrityError, match="wrong sha256"):
        registry.pull("tcl-epyc")
    assert registry.cache.entries() == []


def test_the_index_leads_to_the_hub(hub, entry, source, tmp_path, monkeypatch):
    monkeypatch.setattr("tchub.hub.registry.sources.HfSource", lambda repo: source)
    pulled = make_registry(tmp_path, entry).pull("tcl-epyc")
    assert pulled.source == f"hf://{REPO}"


def test_a_full_disk_under_the_hubs_cache_names_it(hub, entry, source, dest, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "blob")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(StoreError, match="no space left") as caught:
        source.fetch(entry, dest)
    assert "HF_HOME" in caught.value.remedy
