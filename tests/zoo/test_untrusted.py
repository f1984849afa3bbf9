"""Reading what nobody vouches for, which files and JSON are refused; and writing files for those who may read them."""

import json
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.untrusted import MAX_CONTAINERS, MAX_DEPTH, check_zip, parse_json, read_plain

from scripts.fuzz.limits import limited

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(values)
def test_what_json_wrote_comes_back(value):
    assert parse_json(json.dumps(value).encode()) == value


@given(st.binary())
def test_anything_else_is_a_value_error(data):
    with suppress(ValueError):
        parse_json(data)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[{"b": {"k": 0, "k": 0}}]', "twice"),
        ("[-Infinity]", "Infinity"),
        ("[18446744073709551616]", "64 bits"),
        ('{"' + "9" * 5000 + '": ' + "9" * 5000 + "}", "digits"),
        ('["\\ud800"]', "surrogate"),
        ("[" * 33 + "]" * 33, "deeper"),
        ("[" * 100_000, "deeper"),
        ('{"a":' * 100_000, "deeper"),
        ("[" + "[]," * MAX_CONTAINERS + "[]]", "more than"),
        ("", "Expecting"),
        ("{}{}", "Extra"),
        ("\ufeff{}", "BOM"),
    ],
)
def test_json_that_could_mislead_or_exhaust_a_reader(text, why):
    with limited(256 << 20, 20), pytest.raises(ValueError, match=why):
        parse_json(text.encode())


def test_text_that_is_not_utf_8_is_refused_even_where_python_would_guess():
    with pytest.raises(ValueError, match="codec"):
        parse_json('{"a": 1}'.encode("utf-16"))


def test_the_deepest_that_is_read():
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


def test_a_file_of_the_limit_is_read_and_one_byte_more_is_not(tmp_path):
    (tmp_path / "file").write_bytes(b"1234")
    assert read_plain(tmp_path / "file", 4) == b"1234"
    with pytest.raises(ValueError, match="larger than 3"):
        read_plain(tmp_path / "file", 3)


def test_a_huge_file_takes_no_memory(tmp_path):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with limited(64 << 20, 20), pytest.raises(ValueError, match="larger"):
        read_plain(tmp_path / "huge", 1 << 20)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, make_socket, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_plain_file_is_neither_waited_for_nor_read(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    make(Path("it"))
    with limited(64 << 20, 20), pytest.raises(ValueError, match="not a plain file"):
        read_plain(Path("it"), 1 << 20)


def test_a_link_to_a_file_is_followed(tmp_path):
    (tmp_path / "blob").write_bytes(b"data")
    (tmp_path / "link").symlink_to("blob")
    assert read_plain(tmp_path / "link", 10) == b"data"


def test_a_key_twice_among_very_many_is_found_without_comparing_all_with_all():
    keys = [*range(200_000), 199_999]
    text = "{" + ",".join(f'"{key}":0' for key in keys) + "}"
    began = time.monotonic()
    with pytest.raises(ValueError, match="it says '199999' twice"):
        parse_json(text.encode())
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("version", [45, 255], ids=["a format that Python knows", "a newer one"])
def test_a_zip_file_of_a_newer_format_is_a_value_error(tmp_path: Path, version: int) -> None:
    path = tmp_path / "archive.zip"
    with ZipFile(path, "w") as archive:
        archive.writestr("a.json", "{}")
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 6] = version  # of the directory's entry: what is needed to unpack it
    path.write_bytes(data)
    if version < 255:
        check_zip(path, entry=1 << 20)
    else:
        with pytest.raises(ValueError, match="no zip file"):
            check_zip(path, entry=1 << 20)


@pytest.mark.parametrize("size", [10**6, 2**63, 2**64 - 1], ids=["a file", "an offset", "a field"])
def test_a_zip_file_whose_directory_is_larger_than_what_is_named_is_a_value_error(tmp_path: Path, size: int) -> None:
    """Releases of Python that do not compare the size with the file seek to below its start, which overflows."""
    path = tmp_path / "archive.zip"
    with ZipFile(path, "w") as archive:
        archive.writestr("a.json", "{}")
    content, end, _ = path.read_bytes().partition(b"PK\5\6")
    directory = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(content), 1)
    path.write_bytes(content + directory + locator + struct.pack("<4s4H2LH", end, 0, 0, 1, 1, 2**32 - 1, 2**32 - 1, 0))
    with pytest.raises(ValueError, match="no zip file"):
        check_zip(path, entry=1 << 20)
