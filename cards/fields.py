"""Reading config.json and metrics.json field by field: one of a wrong type is named, a missing one is None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .errors import CardError


def wrong(key: str, wanted: str) -> CardError:
    """The error of a field that is something else than `wanted`."""
    return CardError(f"{key} is not {wanted}", remedy="write the file again with tchub evaluate", field=key)


def as_object(value: object, key: str) -> Mapping[str, Any]:
    """A JSON object; {} for null."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong(key, "an object")
    return value


def read_object(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object called `key`; {} when it is missing."""
    return as_object(raw.get(key), key)


def read_objects(raw: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The list of objects called `key`; [] when it is missing."""
    value = raw.get(key) or []
    if not isinstance(value, list | tuple):
        raise wrong(key, "a list of objects")
    return [as_object(item, key) for item in value]


def read_text(raw: Mapping[str, Any], key: str) -> str | None:
    """The text called `key`; an empty one is missing."""
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise wrong(key, "text")
    if value and any("\ud800" <= letter <= "\udfff" for letter in value):  # half a character, which no file can hold
        raise wrong(key, "text")
    return value or None


def read_required(raw: Mapping[str, Any], key: str) -> str:
    """A text that must be there.

    Raises:
        CardError: it is not.
    """
    value = read_text(raw, key)
    if not value:
        raise CardError(f"config.json lacks {key}", remedy="save the checkpoint again", field=key)
    return value


def read_texts(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The list of texts called `key`; () when it is missing."""
    value = raw.get(key) or []
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise wrong(key, "a list of texts")
    return tuple(value)


def read_number(raw: Mapping[str, Any], key: str) -> float | None:
    """The number called `key`; one that is not finite is missing."""
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(key, "a number")
    return float(value) if math.isfinite(value) else None


def read_whole(raw: Mapping[str, Any], key: str) -> int | None:
    """The whole number called `key`."""
    value = raw.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise wrong(key, "a whole number")
    return value


def read_required_number(raw: Mapping[str, Any], key: str) -> float:
    """The number called `key`, which must be there and finite."""
    value = read_number(raw, key)
    if value is None:
        raise wrong(key, "a number")
    return value


def read_numbers(raw: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """The list of finite numbers called `key`; () when it is missing."""
    value = raw.get(key) or []
    if not isinstance(value, list | tuple):
        raise wrong(key, "a list of numbers")
    return tuple(read_required_number({key: item}, key) for item in value)


def read_truth(raw: Mapping[str, Any], key: str) -> bool | None:
    """The true or false called `key`."""
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise wrong(key, "true or false")
    return value
