"""Checkpoints as plain data for people: search, order, facts in words, scores; for `tchub list` and the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...zoo.devices import known_device
from ..text import data_text, number_text, size_text
from .entry import KINDS, METRICS, Entry
from .errors import SourceError
from .files import METRICS_FILE, read_card, read_json, verify_folder
from .index import INDEX_FILE, Index
from .registry import Registry
from .sources import FolderSource, parse_source

if TYPE_CHECKING:
    from ...cards import CardMetrics

SORT_KEYS = ("family", "name", *METRICS, "parameters", "size")
TITLES = {
    "top1": "top-1",
    "top5": "top-5",
    "pairwise": "pairwise",
    "mean_top1": "mean top-1",
    "mean_top5": "mean top-5",
}

# Facts of one entry


def kind_of(entry: Entry) -> str:
    """Return `cpu` or `gpu`, as the names of its features end; empty for features that say neither."""
    kind = entry.feature_schema.rpartition("-")[2]
    return kind if kind in KINDS else ""


def facts(entry: Entry) -> dict[str, str]:
    """Return what the checkpoint is, one line each; its family as `t4 (transferred from v100, k80)`."""
    preposition = {"measured": " on ", "transferred": " from "}.get(entry.origin, "")
    learnt = f"{entry.origin}{preposition if entry.measured_on else ''}{', '.join(entry.measured_on)}"
    lines = {
        "architecture": entry.arch,
        "parameters": number_text(entry.parameters),
        "device family": f"{entry.family} ({learnt})" if entry.origin else entry.family,
        "size": size_text(entry.size),
        "trained on": data_text(entry.data),
        "weights licence": entry.weights_licence,
        "data licence": entry.data_licence,
        "features": entry.feature_schema,
        "TVM": entry.tvm or "-",
        "for TVM": entry.tvm_range,
        "adapted from": str(entry.lineage.get("base") or ""),
        "deprecated": entry.deprecated or "",
    }
    return {key: value for key, value in lines.items() if value}


def device_titles(entry: Entry) -> list[str]:
    """Return the vendors' names of the devices that it learnt from, or else of its family, as far as known."""
    return [known.title for name in entry.measured_on or (entry.family,) if (known := known_device(name))]


def listing(entry: Entry) -> dict[str, Any]:
    """Return one line of a list of checkpoints, JSON-serialisable; reads no file."""
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
        **{key: entry.metrics.get(key) for key in METRICS},
        "data": dict(entry.data),
        **{key: n if isinstance(n := entry.data.get(key), int) else None for key in ("programs", "tasks")},
        "weights_licence": entry.weights_licence,
        "data_licence": entry.data_licence,
        "local": entry.is_local,
        "deprecated": entry.deprecated,
    }


def record(entry: Entry, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return all facts of one version, JSON-serialisable.

    Args:
        raw: its metrics.json; {} when it is not at hand, and the scores are those of the index.
    """
    metrics = metrics_of(raw)
    model, corpus = metrics.model, [metrics.corpus] if metrics.corpus else []
    # The deviation belongs to this mean, not to the score of the checkpoint, which is the best one of the trainings.
    seeds = {score: {"mean": pair.mean, "stdev": pair.stdev} for score, pair in metrics.seeds.spread.items()}
    counts = [f"{value:,} {key}" for key in ("tasks", "programs") if (value := getattr(metrics, key)) is not None]
    return listing(entry) | {
        "devices": device_titles(entry),
        "scores": {score: entry.metrics.get(score, model and model.value(score)) for score in TITLES},
        "seeds": {"count": metrics.seeds.count} | seeds if seeds else {},
        "judged_on": ", ".join([*corpus, *counts] if corpus else []),  # scores compare where this is the same
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


# Scores beside baselines, from metrics.json or else from the index


def metrics_of(raw: Mapping[str, Any]) -> CardMetrics:
    """Return a metrics.json; an empty one where it is not at hand, or has another shape."""
    from ...cards import CardError, CardMetrics, read_metrics

    try:
        return read_metrics(raw)
    except CardError:
        return CardMetrics()


def results_of(entry: Entry, metrics: CardMetrics) -> list[dict[str, Any]]:
    """Return the checkpoint's own line, then its baselines': `key`, `label` and a number or None for each title."""
    from ...cards import CardMetrics, ScoreLine

    own = msgspec.convert(dict(entry.metrics), ScoreLine)
    lines = metrics.scores or CardMetrics(results={"model": own}).scores
    return [
        {"key": line.key, "label": line.label.strip("*")} | {score: line.value(score) for score in TITLES}
        for line in lines
    ]


def comparable(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return True where all were judged on the same programs, so that their scores compare."""
    return len({one["judged_on"] or one["name"] for one in records}) == 1


# Search and order


def matching(entries: Iterable[Entry], text: str = "", kind: str | None = None) -> list[Entry]:
    """Keep checkpoints that match every word of `text` (see `searchable`), of one kind of device if given."""
    parts = text.lower().split()
    return [
        entry
        for entry in entries
        if kind in (None, kind_of(entry)) and (not parts or all(part in searchable(entry) for part in parts))
    ]


def searchable(entry: Entry) -> str:
    """Return the text to search in, in lower case: names, devices and their titles, licences."""
    origin = "knowledge base" if entry.is_knowledge_base else entry.origin
    texts = [entry.name, entry.version, entry.arch, entry.family, kind_of(entry), origin, entry.feature_schema]
    texts += [entry.weights_licence, entry.data_licence, str(entry.data.get("name") or "")]
    texts += [*entry.measured_on, *device_titles(entry)]
    return " ".join(dict.fromkeys(filter(None, texts))).lower()


def in_list_order(entries: Iterable[Entry], key: str = "family") -> list[Entry]:
    """Sort by one of `SORT_KEYS`; unknown values come last, equals are by name and version.

    `family`, the default, is the order in which scores can be compared: CPUs before GPUs, knowledge bases after the
    families of their kind, and in each family the highest top-1 first. Best scores come first, but the smallest model.
    """
    by_name = sorted(entries, key=lambda entry: (entry.name, entry.semver))
    return sorted(by_name, key=lambda entry: _rank(entry, key))


def by_family(entries: Iterable[Entry]) -> list[tuple[str, list[Entry]]]:
    """Return families and their checkpoints, in the order `family`."""
    return [(family, list(group)) for family, group in groupby(in_list_order(entries), lambda entry: entry.family)]


def _rank(entry: Entry, key: str) -> tuple[Any, ...]:
    if key == "family":
        kind = kind_of(entry)
        kinds = KINDS.index(kind) if kind else len(KINDS)
        return kinds, entry.is_knowledge_base, entry.family, *_rank(entry, "top1")
    value = entry.metrics.get(key) if key in METRICS else getattr(entry, key)
    return value is None, -(value or 0) if key in METRICS else value or 0


# The catalogue


@dataclass(frozen=True)
class CatalogueItem:
    """A checkpoint with what is at hand of it.

    Attributes:
        entry: its newest version; older: the others of the catalogue, newest first.
        metrics: its metrics.json; empty when it is not at hand.
        path: its folder on this machine, or None.
    """

    entry: Entry
    older: tuple[Entry, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def card(self) -> str:
        """The model card's text; empty when it is not here."""
        return read_card(self.path) if self.path else ""

    @property
    def page(self) -> str:
        """Its page, from the catalogue's folder."""
        return f"c/{self.entry.name}.html"

    @property
    def versions(self) -> tuple[Entry, ...]:
        """All versions, newest first."""
        return (self.entry, *self.older)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, as in catalogue.json."""
        versions = [entry.version for entry in self.versions]
        return record(self.entry, self.metrics) | {"page": self.page, "versions": versions}


def registry_of(source: str) -> Registry:
    """Return the registry of `file:///folder`, which holds `<name>/<version>/` and an index.json."""
    here, folder = Registry.default(), parse_source(source)
    if not isinstance(folder, FolderSource):
        message, remedy = f"{source!r} is no folder", "write file:///folder"
        raise SourceError(message, reason="form", remedy=remedy, source=source)
    return Registry(Index.read(folder.root / INDEX_FILE), here.cache, here.home, wheel=folder.root)


def published(registry: Registry) -> list[CatalogueItem]:
    """Return every checkpoint of the index by name, with card and metrics where its files are here, and verified."""
    names: dict[str, list[Entry]] = {}
    for entry in registry.index.entries:
        names.setdefault(entry.name, []).append(entry)
    return [_item(registry, versions) for _, versions in sorted(names.items())]


def _item(registry: Registry, versions: list[Entry]) -> CatalogueItem:
    entry, *older = sorted(versions, key=lambda entry: entry.semver, reverse=True)
    if folder := registry.folder(entry):
        verify_folder(folder, entry.files).require(f"fetch it again: tchub pull {entry.id}")
    return CatalogueItem(entry, tuple(older), read_json(folder / METRICS_FILE) if folder else {}, folder)
