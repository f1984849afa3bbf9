"""Typed decoding of config.json and metrics.json; a field of a wrong type is named by its path in the file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ..zoo.errors import TchubError

CONFIG_FILE, METRICS_FILE = "config.json", "metrics.json"
_REMEDIES = {CONFIG_FILE: "save the checkpoint again", METRICS_FILE: "write the file again with tchub evaluate"}
_AT_PATH = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_ABSENT = re.compile(r"missing required field `(\w+)`")

T = TypeVar("T", bound="JsonFacts")


class CardError(TchubError):
    """config.json or metrics.json lacks the form that a card is made from. Field: `field`, a path in the file."""


class JsonFacts(msgspec.Struct, frozen=True):
    """Base of all structs that are decoded from a checkpoint's files; unknown fields are ignored."""


def decode(raw: Mapping[str, Any], form: type[T], file: str) -> T:
    """Return a JSON object of a checkpoint's file as a struct.

    null, an empty text, an empty object and a number that is not finite count as missing. The size and depth of a
    file that nobody vouches for are bounded where it is read, see `zoo.untrusted`.

    Raises:
        CardError: a required field is missing, or a field has another type.
    """
    try:
        return msgspec.convert(_present(raw, ""), form)
    except msgspec.ValidationError as error:
        match = _AT_PATH.fullmatch(str(error))
        reason, path = match.groups() if match else (str(error), None)
        if absent := _ABSENT.search(reason):
            path = f"{path}.{absent[1]}" if path else absent[1]
        raise bad_field(file, path or file, reason) from error


def bad_field(file: str, path: str, reason: str) -> CardError:
    """Return the error of one field."""
    return CardError(f"{file}: {path}: {reason}", remedy=_REMEDIES[file], field=path)


def _present(value: Any, path: str) -> Any:
    """Return the value without the entries that count as missing."""
    if isinstance(value, Mapping):
        entries = {str(key): _present(entry, f"{path}.{key}") for key, entry in value.items()}
        return {key: entry for key, entry in entries.items() if entry not in (None, "", {})}
    if isinstance(value, list | tuple):
        return [_present(entry, f"{path}[{number}]") for number, entry in enumerate(value)]
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise msgspec.ValidationError(f"it holds half a character - at `${path}`")
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
