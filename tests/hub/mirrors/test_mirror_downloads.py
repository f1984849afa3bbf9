"""What a good mirror gives, and what is said of one that does not hold the checkpoint."""

from __future__ import annotations

import pytest
from mirror_kit import VERSION, WEIGHTS, arrived
from tchub.hub.registry.errors import NotInSourceError
from toy_checkpoints import make_registry, publish, write_index


def test_every_file_arrives_byte_for_byte(server, entry, source, dest):
    source.fetch(entry, dest)
    assert arrived(dest) == server.files


def test_a_mirror_may_hold_one_version_in_the_folder_of_the_name(server, entry, source, dest):
    server.files = {path.replace("/1.0.0/", "/"): data for path, data in server.files.items()}
    source.fetch(entry, dest)
    assert len(arrived(dest)) == 4
    assert server.paths[:2] == [f"/{VERSION}/config.json", "/tcl-epyc/config.json"]


def test_a_mirror_without_the_checkpoint_says_where_it_looked(server, entry, source, dest):
    server.files.clear()
    with pytest.raises(NotInSourceError, match=r"does not hold tcl-epyc@1\.0\.0") as caught:
        source.fetch(entry, dest)
    assert f"{server.url}/{VERSION}/config.json" in caught.value.remedy


def test_a_file_that_is_missing_is_named(server, entry, source, dest):
    del server.files[WEIGHTS]
    with pytest.raises(NotInSourceError, match=r"has no tcl-epyc/1\.0\.0/model\.safetensors"):
        source.fetch(entry, dest)


def test_a_pull_from_a_mirror_is_verified_and_stored(server, entry, tmp_path):
    pulled = make_registry(tmp_path, entry).pull("tcl-epyc", source=server.url)
    assert pulled.source == server.url
    assert pulled.path == tmp_path / "cache" / VERSION


def test_a_mirrors_own_index_makes_its_checkpoints_known(server, tmp_path):
    entry = publish(tmp_path / "zoo", "tcl-own")
    write_index(tmp_path / "zoo" / "index.json", entry)
    server.add(tmp_path / "zoo")
    assert make_registry(tmp_path).pull("tcl-own", source=server.url).entry == entry


def test_an_unchanged_file_is_not_sent_again(server, source):
    server.files["/index.json"] = b"one"
    first = source.read("index.json", 10)
    assert first.data == b"one"
    assert source.read("index.json", 10, first.etag).data is None
    server.files["/index.json"] = b"two"
    for etag in (first.etag, "with\nnewline", "\u2603", "x" * 9999):
        assert source.read("index.json", 10, etag).data == b"two"
