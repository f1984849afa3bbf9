"""The Hugging Face Hub as a source: the real client against a server on loopback, every byte compared."""

import errno
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hub_client import use_client
from hub_protocol import HubServer, running
from huggingface_hub import snapshot_download
from registry_kit import refused
from tchub.hub.registry import Entry
from tchub.hub.registry.errors import IntegrityError, SourceError
from tchub.hub.registry.files import FileRecord
from tchub.hub.registry.sources import HfSource
from tchub.zoo.files import StorageError
from toy_checkpoints import make_registry, publish

REPO = "zoo/tcl-epyc"


@pytest.fixture
def hub():
    with running() as server:
        yield server


@pytest.fixture
def entry(tmp_path, hub) -> Entry:
    """A checkpoint in a repository, pinned to its commit."""
    entry = publish(tmp_path / "origin", "tcl-epyc")
    commit = hub.add(REPO, tmp_path / "origin" / "tcl-epyc" / "1.0.0")
    return replace(entry, revision=commit, sources=(f"hf://{REPO}",))


@pytest.fixture
def source(tmp_path, hub, monkeypatch) -> HfSource:
    use_client(monkeypatch, tmp_path, hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # read once, when it is imported
    return HfSource(REPO)


def same_bytes(hub: HubServer, dest: Path) -> bool:
    files = hub.repos[REPO].files()
    del files[".gitattributes"]
    return {path.name: path.read_bytes() for path in dest.iterdir()} == files


def test_all_files_arrive_at_the_pinned_commit(hub, entry, source, dest):
    source.fetch(entry, dest)
    assert same_bytes(hub, dest)
    # A client that another test has left behind may still ask for a mirror at a port of before.
    asked = [line for line in hub.requests if "/resolve/" in line]
    assert asked
    assert all(f"/resolve/{entry.revision}/" in line for line in asked)
    assert not any(path.is_symlink() for path in dest.iterdir())


def test_offline_the_hubs_cache_serves(hub, entry, source, dest):
    snapshot_download(REPO, revision=entry.revision)
    hub.requests.clear()
    source.fetch(entry, dest, offline=True)
    assert same_bytes(hub, dest)
    assert hub.requests == []


def test_a_damaged_copy_in_the_hubs_cache_does_not_stay_in_the_way(hub, entry, source, dest, tmp_path):
    snapshot_download(REPO, revision=entry.revision)
    for blob in (tmp_path / "hf").rglob("blobs/*"):
        blob.write_bytes(b"\0" * blob.stat().st_size)
    source.fetch(entry, dest)
    assert same_bytes(hub, dest)


@pytest.mark.parametrize("client_has_xet", [True, False])
def test_xet_storage_is_not_needed(entry, source, dest, client_has_xet, hub, monkeypatch):
    hub.xet = not client_has_xet  # a file in Xet storage for a client without it, and the other way round
    monkeypatch.setattr("huggingface_hub.file_download.is_xet_available", lambda: client_has_xet)
    source.fetch(entry, dest)
    assert same_bytes(hub, dest)


def test_an_entry_without_a_commit_is_refused_before_any_request(hub, tmp_path, source, dest):
    with refused("revision", "pins no commit"):
        source.fetch(publish(tmp_path / "floating", "tcl-epyc"), dest)
    assert hub.requests == []


def test_a_server_that_hangs_ends_in_bounded_time(hub, entry, source, dest, monkeypatch):
    hub.faults.stall()
    monkeypatch.setattr("tchub.hub.registry.network.ANSWER_SECONDS", 0.5)
    began = time.monotonic()
    with refused("network", r"config\.json of zoo/tcl-epyc did not come"):
        source.fetch(entry, dest)
    assert time.monotonic() - began < 5
    assert not [path for path in dest.iterdir() if path.is_file()]


REFUSALS = {
    "gated": (lambda hub: setattr(hub.repos[REPO], "gated", True), "gated", "its terms have to be accepted"),
    "token": (lambda hub: os.environ.update(HF_TOKEN="hf_expired"), "token", "refused the token"),
    "missing": (lambda hub: hub.repos.clear(), "missing", "does not exist, or is private"),
    "private": (lambda hub: setattr(hub.repos[REPO], "private", True), "missing", "does not exist, or is private"),
    "commit": (lambda hub: hub.repos[REPO].commits.clear(), "revision", "has no commit"),
    "failing": (lambda hub: hub.faults.answer(503), "network", "HTTP 503"),
    "busy": (lambda hub: hub.faults.answer(429, retry_after=60), "network", "HTTP 429"),
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_each_refusal_of_the_hub_has_its_reason(hub, entry, source, dest, monkeypatch, fault):
    refuse, reason, text = REFUSALS[fault]
    monkeypatch.setenv("HF_TOKEN", "")
    refuse(hub)
    with refused(reason, text) as caught:
        source.fetch(entry, dest)
    assert fault != "busy" or caught.value.remedy.startswith("try again in 60 s")


@pytest.mark.parametrize("token", ["hf_secret", "hf_secret\x01", "hf_s\u00e9cret"])
@pytest.mark.parametrize("status", [None, 401, 500])
def test_no_error_shows_the_token(hub, entry, source, dest, monkeypatch, token, status):
    monkeypatch.setenv("HF_TOKEN", token)
    if status:
        hub.faults.answer(status)
    with pytest.raises(SourceError) as caught:
        source.fetch(entry, dest)
    assert token not in str(caught.value.as_dict().values())
    assert "cret" not in caught.value.message


def test_a_connection_that_breaks_leaves_nothing_that_is_taken_for_whole(hub, entry, source, tmp_path):
    hub.faults.truncate(1, "^GET")
    with refused("network"):
        make_registry(tmp_path, entry).pull("tcl-epyc")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_another_size_is_refused_before_a_byte_is_fetched(hub, entry, source, dest):
    listed = replace(entry, files=dict(entry.files) | {"config.json": FileRecord(7, "0" * 64)})
    with pytest.raises(IntegrityError, match="wrong size"):
        source.fetch(listed, dest)
    assert hub.downloads() == []


@pytest.mark.parametrize(("number", "text"), [(errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only")])
def test_a_disk_that_takes_no_more_is_no_fault_of_the_source(hub, entry, source, tmp_path, monkeypatch, number, text):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number), "file")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", fail)
    with pytest.raises(StorageError, match=text) as caught:
        make_registry(tmp_path, entry).pull("tcl-epyc")
    assert "TCHUB_CACHE" in caught.value.remedy
