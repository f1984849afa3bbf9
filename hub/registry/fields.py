"""Checked readers of JSON that came from elsewhere: of a whole file, and of its single fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, TypeGuard

from ...zoo.untrusted import parse_json, read_plain
from .errors import IndexFileError

MAX_BYTES = 8 << 20  # of a file; an index of 2,000 checkpoints is smaller
_MAX_TEXT = 20_000  # of one text, in characters
_LINES = str.maketrans("", "", "\n\t")
_REMEDY = "fetch the file again, or reinstall tchub"


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object of a file, of which no more than `MAX_BYTES` are read.

    Raises:
        IndexFileError: it cannot be read, is too large, or is not what `parse_document` takes.
    """
    return parse_document(read_file(path), str(path))


def read_file(path: Path) -> bytes:
    """The bytes of a file, of which there may be `MAX_BYTES`; raises IndexFileError."""
    try:
        return read_plain(path, MAX_BYTES)
    except FileNotFoundError as error:
        raise bad(str(path), "there is no such file", "check the path") from error
    except OSError as error:
        raise bad(str(path), error.strerror or str(error)) from error
    except ValueError as error:
        raise bad(str(path), str(error)) from error


def parse_document(data: bytes, where: str, remedy: str = _REMEDY) -> dict[str, Any]:
    """The JSON object of a text.

    Raises:
        IndexFileError: it is none; it is too large or breaks a rule of `zoo.untrusted.parse_json`; or a text in it
            is very long or holds control characters, which could write anything onto a terminal.
    """
    if len(data) > MAX_BYTES:
        raise bad(where, f"it is larger than {MAX_BYTES} bytes", remedy)
    try:
        value = parse_json(data)
        check_texts(value)
    except json.JSONDecodeError as error:
        raise bad(where, f"not JSON: {error}", remedy) from error
    except ValueError as error:
        raise bad(where, str(error), remedy) from error
    if not isinstance(value, dict):
        raise bad(where, "not a JSON object", remedy)
    return value


def check_texts(value: object) -> None:
    """Refuse, as ValueError, a very long text and control characters, which could write anything onto a terminal."""
    if isinstance(value, str):
        if len(value) > _MAX_TEXT:
            raise ValueError(f"it holds a text of {len(value)} characters")
        if not value.isprintable() and not value.translate(_LINES).isprintable():
            raise ValueError(f"it holds control characters: {value[:40]!r}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_texts(key)
            check_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            check_texts(inner)


def bad(where: str, why: str, remedy: str = _REMEDY) -> IndexFileError:
    """The error of a file (or of one entry in it) that cannot be used."""
    return IndexFileError(f"{where} cannot be used: {why}", remedy=remedy, path=where)


def check_format(number: object, newest: int, where: str) -> None:
    """Refuse a file of a newer format, or one without a format number (raises IndexFileError)."""
    if not is_whole(number) or number < 1:
        raise bad(where, "no format number")
    if number > newest:
        raise IndexFileError(
            f"{where} has format {number}; this tchub reads up to {newest}",
            remedy="upgrade tchub: pip install -U tchub",
            path=where,
            format=number,
        )


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number of any kind; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(raw: Mapping[str, Any], key: str, default: int, where: str) -> int:
    """A whole number, 0 or more; raises IndexFileError."""
    value = raw.get(key, default)
    if not is_whole(value) or value < 0:
        raise bad(where, f"{key} is not a whole number")
    return value


def optional(raw: Mapping[str, Any], key: str, kind: type, default: Any, where: str) -> Any:
    """A value of one type, or the default for none; raises IndexFileError."""
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise bad(where, f"{key} is not of type {kind.__name__}")
    return value


def day(raw: Mapping[str, Any], key: str, where: str) -> date:
    """A day such as 2026-01-31; raises IndexFileError."""
    try:
        return date.fromisoformat(optional(raw, key, str, "", where))
    except ValueError as error:
        raise bad(where, f"{key} is not a day such as 2026-01-31") from error
