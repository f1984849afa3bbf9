"""Reading what nobody vouches for, which files and JSON are refused; and writing files for those who may read them."""

import json
import struct
from contextlib import nullcontext, suppress
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


def test_a_link_to_a_file_is_followed(tmp_path):
    (tmp_path / "blob").write_bytes(b"data")
    (tmp_path / "link").symlink_to("blob")
    assert read_plain(tmp_path / "link", 10) == b"data"


def test_a_key_twice_among_very_many_is_found_without_comparing_all_with_all():
    keys = [*range(200_000), 199_999]
    text = "{" + ",".join(f'"{key}":0' for key in keys) + "}"
    with limited(1 << 30, 20), pytest.raises(ValueError, match="it says '199999' twice"):
        parse_json(text.encode())


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A sound zip file."""
    with ZipFile(tmp_path / "archive.zip", "w") as file:
        file.writestr("a.json", "{}")
    return tmp_path / "archive.zip"


@pytest.mark.parametrize("version", [45, 255], ids=["a format that Python knows", "a newer one"])
def test_a_zip_file_of_a_newer_format_is_a_value_error(archive: Path, version: int) -> None:
    data = bytearray(archive.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 6] = version  # of the directory's entry: what is needed to unpack it
    archive.write_bytes(data)
    with pytest.raises(ValueError, match="no zip file") if version == 255 else nullcontext():
        check_zip(archive, entry=1 << 20)


@pytest.mark.parametrize("size", [10**6, 2**63, 2**64 - 1], ids=["a file", "an offset", "a field"])
def test_a_zip_file_whose_directory_is_larger_than_what_is_named_is_a_value_error(archive: Path, size: int) -> None:
    """Releases of Python that do not compare the size with the file seek to below its start, which overflows."""
    content, end, _ = archive.read_bytes().partition(b"PK\5\6")
    directory = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(content), 1)
    archive.write_bytes(
        content + directory + locator + struct.pack("<4s4H2LH", end, 0, 0, 1, 1, 2**32 - 1, 2**32 - 1, 0)
    )
    with pytest.raises(ValueError, match="no zip file"):
        check_zip(archive, entry=1 << 20)
