"""Busy and broken mirrors: asked again where that helps, given up in bounded time, and never taken at their word."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mirror_kit import VERSION, WEIGHTS, arrived
from mirror_server import broken_off, dripping, endless, running, silent, status
from tchub.hub.registry import Store
from tchub.hub.registry.errors import IntegrityError, NetworkError, SourceError, StoreError
from tchub.hub.registry.mirror import Mirror
from toy_checkpoints import make_registry, publish

# Busy and broken servers


def test_a_busy_server_is_asked_again_when_it_said(server, entry, source, dest):
    server.answers = [status(429, Retry_After="1"), status(503)]
    began = time.monotonic()
    Mirror(server.url, patience=2).fetch(entry, dest)
    assert arrived(dest) == server.files
    assert time.monotonic() - began >= 1
    assert server.paths[:3] == [f"/{VERSION}/config.json"] * 3


def test_a_server_that_asks_for_a_long_pause_is_not_waited_for(server, entry, source, dest):
    server.answers = [status(429, Retry_After="3600")]
    with pytest.raises(NetworkError, match="HTTP 429") as caught:
        source.fetch(entry, dest)
    assert "in 3600 s" in caught.value.remedy
    assert caught.value.fields["retry_after"] == 3600
    assert len(server.seen) == 1


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_a_server_that_fails_every_time_is_given_up(server, entry, source, dest, code):
    server.answers = [status(code)] * 9
    with pytest.raises(NetworkError, match=f"HTTP {code}") as caught:
        source.fetch(entry, dest)
    assert caught.value.fields["status"] == code
    assert len(server.seen) == 4


def test_a_connection_that_is_closed_without_an_answer_is_tried_again(server, entry, source, dest):
    server.answers = [silent(0)]
    source.fetch(entry, dest)
    assert arrived(dest) == server.files


def test_a_broken_download_goes_on_where_it_stopped(server, entry, source, dest):
    data = server.files[f"/{VERSION}/config.json"]
    server.answers = [broken_off(data, 100), broken_off(data[100:], 50, code=206)]
    source.fetch(entry, dest)
    assert arrived(dest) == server.files
    assert [headers.get("range") for _, headers in server.seen][:3] == [None, "bytes=100-", "bytes=150-"]


@settings(max_examples=20)
@given(breaks=st.lists(st.integers(0, 100), max_size=3), ranges=st.booleans())
def test_wherever_it_breaks_off_every_byte_arrives(tmp_path_factory, breaks, ranges):
    tmp = tmp_path_factory.mktemp("mirror")
    entry = publish(tmp / "zoo", "tcl-epyc")
    with running() as server:
        server.add(tmp / "zoo")
        server.ranges = ranges
        data, at = server.files[f"/{VERSION}/config.json"], 0
        for length in breaks:
            start = at if ranges else 0
            server.answers.append(broken_off(data[start:], length, code=206 if start else 200))
            at = start + length
        (tmp / "dest").mkdir()
        Mirror(server.url, patience=5).fetch(entry, tmp / "dest")
        assert arrived(tmp / "dest") == server.files


def test_a_server_without_ranges_sends_a_broken_file_again(server, entry, source, dest):
    server.ranges = False
    server.answers = [broken_off(server.files[f"/{VERSION}/config.json"], 100)]
    source.fetch(entry, dest)
    assert arrived(dest) == server.files


def test_a_download_that_breaks_every_time_is_given_up(server, entry, source, dest):
    server.ranges = False
    server.answers = [broken_off(server.files[f"/{VERSION}/config.json"], 100)] * 9
    with pytest.raises(NetworkError, match="broke off 4 times, the last time after 100 of"):
        source.fetch(entry, dest)


def test_a_server_that_hangs_ends_in_bounded_time(server, entry, source, dest):
    server.answers = [silent(20)] * 9
    began = time.monotonic()
    with pytest.raises(NetworkError):
        source.fetch(entry, dest)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("rest", ["X-Slow: ", "Transfer-Encoding: chunked\r\n\r\n", "Content-Length: {size}\r\n\r\n"])
def test_a_server_that_drips_ends_in_bounded_time(server, entry, source, dest, rest):
    head = "HTTP/1.1 200 OK\r\n" + rest.format(size=entry.files["config.json"].size)
    server.answers = [dripping(head.encode(), 20)] * 9
    began = time.monotonic()
    with pytest.raises(NetworkError, match="hangs, or is too slow"):
        source.fetch(entry, dest)
    assert time.monotonic() - began < 5


def test_a_server_that_is_not_there(entry, dest):
    with pytest.raises(NetworkError, match="could not be read: NewConnectionError"):
        Mirror("http://127.0.0.1:9", patience=0.4).fetch(entry, dest)


# Sizes and bytes


def test_another_announced_size_is_refused_before_a_byte_is_stored(server, entry, source, dest):
    server.files[f"/{VERSION}/config.json"] += b" "
    with pytest.raises(IntegrityError, match="wrong size"):
        source.fetch(entry, dest)
    assert (dest / "config.json").stat().st_size == 0


def test_an_endless_body_is_cut_off_at_the_size_of_the_index(server, entry, source, dest):
    server.answers = [endless]
    with pytest.raises(IntegrityError, match="wrong size"):
        source.fetch(entry, dest)
    assert (dest / "config.json").stat().st_size <= entry.files["config.json"].size


def test_a_disk_that_is_full_while_a_file_arrives(server, entry, source, tmp_path):
    def fill(folder: Path) -> None:
        (folder / "model.safetensors").symlink_to("/dev/full")
        source.fetch(entry, folder)

    with pytest.raises(StoreError, match="no space left") as caught:
        Store(tmp_path / "store").add(entry, fill)
    assert "TCHUB_CACHE" in caught.value.remedy
    assert list((tmp_path / "store" / "tcl-epyc").iterdir()) == []


def test_a_small_file_is_read_up_to_a_limit(server, source):
    server.files["/index.json"] = b"x" * 100
    assert source.read("index.json", 100).data == b"x" * 100
    for answers in ([], [endless]):
        server.answers = answers
        with pytest.raises(SourceError, match="more than 99 bytes"):
            source.read("index.json", 99)


def test_a_compressed_answer_is_refused(server, source):
    server.answers = [status(200, Content_Encoding="gzip")]
    with pytest.raises(NetworkError, match="compressed"):
        source.read("index.json", 100)
    assert server.seen[0][1]["accept-encoding"] == "identity"


def test_other_bytes_of_the_same_size_never_reach_the_store(server, entry, tmp_path):
    server.files[WEIGHTS] = bytes(len(server.files[WEIGHTS]))
    registry = make_registry(tmp_path, entry)
    with pytest.raises(IntegrityError, match="wrong sha256"):
        registry.pull("tcl-epyc", source=server.url)
    assert registry.cache.entries() == []
