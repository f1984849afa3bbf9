"""Checkpoints as plain data: `listing` from the index alone, `record` with the scores of metrics.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import Entry, FolderSource, Index, Registry, parse_source, verify_folder
from .describe import read_card, read_json
from .errors import UnknownSourceError
from .fields import is_whole
from .listed_facts import device_titles, facts, kind_of
from .query import newest
from .scores import judged_on, own_scores, results_of, seeds_of


def listing(entry: Entry) -> dict[str, Any]:
    """One line of a list of checkpoints, JSON-serialisable; reads no file."""
    return {
        "name": entry.name,
        "version": entry.version,
        "arch": entry.arch,
        "family": entry.family,
        "kind": kind_of(entry) or None,
        "knowledge_base": entry.is_knowledge_base,
        "origin": entry.origin or None,
        "measured_on": list(entry.measured_on),
        "parameters": entry.parameters,
        "feature_schema": entry.feature_schema,
        "size": entry.size,
        **{key: entry.metrics.get(key) for key in ("top1", "top5", "pairwise")},
        "data": dict(entry.data),
        **{key: _counted(entry, key) for key in ("programs", "tasks")},
        "weights_licence": entry.weights_licence,
        "data_licence": entry.data_licence,
        "local": entry.is_local,
        "deprecated": entry.deprecated,
    }


def _counted(entry: Entry, key: str) -> int | None:
    value = entry.data.get(key)
    return value if is_whole(value) else None


def record(entry: Entry, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """All that is told of one version, JSON-serialisable.

    Args:
        metrics: its metrics.json; {} when it is not at hand, and the scores are those of the index.
    """
    return listing(entry) | {
        "devices": device_titles(entry),
        "scores": own_scores(entry, metrics),
        "seeds": seeds_of(metrics),
        "judged_on": judged_on(metrics),
        "results": results_of(entry, metrics),
        "facts": facts(entry),
        "tvm": entry.tvm,
        "tvm_range": entry.tvm_range,
        "transfer": {device: dict(row) for device, row in sorted(entry.transfer.items())},
        "sources": list(entry.sources),
        "revision": entry.revision,
        "files": {name: {"size": file.size, "sha256": file.sha256} for name, file in sorted(entry.files.items())},
        "pull": f"tchub pull {entry.id}",
    }


def comparable(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether scores can be held against each other: all were judged on the same programs."""
    return len({one["judged_on"] or one["name"] for one in records}) == 1


@dataclass(frozen=True)
class Listed:
    """A checkpoint in the catalogue.

    Attributes:
        entry: its newest version; older: the others, newest first.
        metrics, card: its metrics.json and README.md; empty when they are not at hand.
        aliases: names that it had earlier.
    """

    entry: Entry
    older: tuple[Entry, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """Its page, from the catalogue's folder."""
        return f"c/{self.entry.name}.html"

    def as_dict(self) -> dict[str, Any]:
        """JSON form, as in catalogue.json."""
        versions = [entry.version for entry in self.versions]
        return record(self.entry, self.metrics) | {"page": self.page, "versions": versions, "aliases": self.aliases}

    @property
    def versions(self) -> tuple[Entry, ...]:
        """All versions, newest first."""
        return (self.entry, *self.older)


def registry_of(index: Path | None = None, source: str | None = None) -> Registry:
    """Where the checkpoints to show come from; by default what the environment describes.

    Args:
        index: an index file in place of the one in use.
        source: `file:///folder` that holds `<name>/<version>/`; its index.json counts unless `index` is given.

    Raises:
        UnknownSourceError: `source` is no folder.
        IndexFileError: the index cannot be read.
    """
    here = Registry.default()
    if source is None:
        return here if index is None else replace(here, index=Index.read(index))
    folder = parse_source(source)
    if not isinstance(folder, FolderSource):
        raise UnknownSourceError(f"{source!r} is no folder", remedy="write file:///folder", source=source)
    return Registry(Index.read(index or folder.root / "index.json"), here.cache, here.home, wheel=folder.root)


def published(registry: Registry) -> list[Listed]:
    """Every checkpoint of the index by name, with card and metrics where its files are on this machine.

    Checkpoints that were adapted here are not published, so they are left out.

    Raises:
        IntegrityError: files of a checkpoint are not what the index says: its card cannot be shown.
        IndexFileError: a metrics.json that cannot be read.
    """
    names: dict[str, list[Entry]] = {}
    for entry in registry.index.entries:
        names.setdefault(entry.name, []).append(entry)
    return [_listed(registry, versions) for _, versions in sorted(names.items())]


def _listed(registry: Registry, versions: list[Entry]) -> Listed:
    entry = newest(versions)
    older = sorted((e for e in versions if e is not entry), key=lambda e: e.semver, reverse=True)
    aliases = sorted(old for old, name in registry.index.aliases.items() if name == entry.name)
    listed = Listed(entry, tuple(older), aliases=tuple(aliases))
    folder = registry.folder(entry)
    if folder is None:
        return listed
    verify_folder(folder, entry.files).require(f"fetch it again: tchub pull {entry.id}")
    return replace(listed, metrics=read_json(folder / "metrics.json"), card=read_card(folder))
