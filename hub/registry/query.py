"""Search, kinds and orders of checkpoints: the same in `tchub list` and in the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from .entry import Entry
from .listed_facts import kind_of, searchable
from .names import KINDS

# Best scores first, but the smallest model.
_HIGHEST_FIRST = ("top1", "top5", "pairwise")
SORT_KEYS = ("family", "name", *_HIGHEST_FIRST, "parameters", "size")


def found(entries: Iterable[Entry], text: str = "", kind: str | None = None) -> list[Entry]:
    """Those in which every word of `text` occurs somewhere (see `searchable`), of one kind of device if given."""
    words = text.lower().split()
    return [
        entry
        for entry in entries
        if kind in (None, kind_of(entry)) and (not words or all(word in searchable(entry) for word in words))
    ]


def arranged(entries: Iterable[Entry], key: str = "family") -> list[Entry]:
    """In the order of one of `SORT_KEYS`; what is not known comes last, equals are by name and version.

    `family`, the default, is the order in which scores can be compared: CPUs before GPUs, knowledge bases after the
    families of their kind, and in each family the highest top-1 first.
    """
    by_name = sorted(entries, key=lambda entry: (entry.name, entry.semver))
    return sorted(by_name, key=_order_by(key))


def by_family(entries: Iterable[Entry]) -> list[tuple[str, list[Entry]]]:
    """Families and their checkpoints, in the order `family`."""
    return [(family, list(group)) for family, group in groupby(arranged(entries), lambda entry: entry.family)]


def newest(versions: Iterable[Entry]) -> Entry:
    """The newest release, or the newest pre-release where there is no release."""
    return max(versions, key=lambda entry: (not entry.semver.pre, entry.semver))


def _order_by(key: str) -> Callable[[Entry], Any]:
    if key == "name":
        return lambda entry: entry.name
    if key == "family":
        return lambda entry: (*_place_of_family(entry), *_score(entry, "top1"))
    if key in _HIGHEST_FIRST:
        return lambda entry: _score(entry, key)
    return lambda entry: (getattr(entry, key) is None, getattr(entry, key) or 0)


def _score(entry: Entry, key: str) -> tuple[bool, float]:
    value = entry.metrics.get(key)
    return value is None, -(value or 0.0)


def _place_of_family(entry: Entry) -> tuple[int, bool, str]:
    kind = kind_of(entry)
    return KINDS.index(kind) if kind else len(KINDS), entry.is_knowledge_base, entry.family
