"""Reading what nobody vouches for: plain files of a bounded size, zip files, and JSON with one meaning in few levels.

Everything here raises `ValueError` with the second half of a sentence ("it is ..."); callers say which file it is,
and what to do about it.
"""

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

# No file of this project nests deeper than ten; code that walks a value by recursion is safe with this.
MAX_DEPTH = 32
# An object or a list takes at least two bytes of a file and up to a hundred times as much in memory.
MAX_CONTAINERS = 200_000
# The range of a machine word, in which any other reader of the same file holds a whole number.
_MAX_WHOLE = 2**64
# Bytes that a zip file may unpack to, and how many times its own size.
_SMALL_ARCHIVE, _RATIO = 16 << 20, 100


@contextmanager
def open_plain(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file for reading; yield it and its size in bytes.

    A link is followed (the Hub's cache is made of them). A FIFO would let the reader wait forever, and a device may
    never end or act when it is read, so that neither is opened.

    Raises:
        ValueError: it is a folder, a FIFO, a socket or a device.
        OSError: it is missing or may not be read.
    """
    _require_plain(os.stat(path))
    # Not to wait even where the file was swapped for a FIFO in between.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        info = os.fstat(file.fileno())
        _require_plain(info)
        yield file, info.st_size


def read_plain(path: Path, limit: int) -> bytes:
    """Return the whole file; its size is looked at before a byte is read.

    Raises:
        ValueError: it is no plain file, or larger than `limit` bytes.
        OSError: it is missing or may not be read.
    """
    with open_plain(path) as (file, size):
        if size <= limit:
            data = file.read(limit + 1)  # and no more than that from a file that grows meanwhile
            if len(data) <= limit:
                return data
    raise ValueError(f"it is larger than {limit} bytes")


def check_zip(path: Path, *, entry: int) -> None:
    """Check what a zip file unpacks to, before any of it is unpacked.

    Its entries together may take 100 times the file, or 16 MiB. A reader must take no more of an entry than the
    archive says that it holds, since that may be a lie: `ZipFile.open(name).read(size)`.

    Args:
        entry: bytes of one entry at most.

    Raises:
        ValueError: it is no zip file, or one that is larger unpacked, encrypted, or compressed by other means than
            deflate, which Python unpacks without a bound.
        OSError: it is missing or may not be read.
    """
    with open_plain(path) as (file, size):
        try:
            infos = ZipFile(file).infolist()
        except (BadZipFile, RuntimeError, OverflowError) as error:
            # A RuntimeError: an entry asks for a newer version of the format. An OverflowError: the directory's size is
            # larger than any file, in releases of Python that seek there before they look.
            raise ValueError(f"it is no zip file: {error}") from error
    for info in infos:
        if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED) or info.flag_bits & 1:
            raise ValueError(f"{info.filename!r:.80} in it is encrypted, or compressed by other means than deflate")
        if info.file_size > entry:
            raise ValueError(f"{info.filename!r:.80} in it unpacks to more than {entry >> 20} MiB")
    if sum(info.file_size for info in infos) > max(_SMALL_ARCHIVE, _RATIO * size):
        raise ValueError(f"it unpacks to more than {_RATIO} times its size")


def parse_json(data: bytes) -> Any:
    """Return the value of a JSON text, refused where two readers could differ on it or where it would exhaust one.

    Strict UTF-8, no key twice in an object, no NaN or infinity, no whole number beyond 64 bits, no text that is no
    Unicode, at most `MAX_DEPTH` levels and `MAX_CONTAINERS` objects and lists. The memory it takes is a small
    multiple of the text's.

    Raises:
        ValueError: it is none, or breaks one of these rules.
    """
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS:
        raise ValueError(f"it holds more than {MAX_CONTAINERS} objects and lists")

    def no_constant(text: str) -> Any:
        raise ValueError(f"it holds {text}, which is not JSON")

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_constant=no_constant)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _walk(value)
    return value


_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        (twice, _) = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"it says {twice!r:.80} twice")
    return value


def _walk(value: Any) -> None:
    """Check numbers, texts and depth, level by level."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [one for one in level if isinstance(one, dict | list)]
        for one in level:
            if not isinstance(one, dict | list):
                _check_leaf(one)
        if not containers:
            return
        level = [inner for one in containers for inner in (one if isinstance(one, list) else (*one, *one.values()))]
    raise ValueError(_TOO_DEEP)


def _check_leaf(value: Any) -> None:
    if isinstance(value, str):
        if not value.isascii():
            value.encode()  # UnicodeEncodeError, a ValueError, of half a surrogate pair
    elif isinstance(value, float):
        if not isfinite(value):
            raise ValueError("it holds a number that is too large")
    elif value is not None and not -_MAX_WHOLE < value < _MAX_WHOLE:
        raise ValueError("it holds a whole number beyond 64 bits")


def _require_plain(info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise ValueError("it is a folder, a pipe or a device, not a plain file")
