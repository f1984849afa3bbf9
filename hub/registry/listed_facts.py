"""What is said of a checkpoint in words, from its index entry: the same in the terminal and in the catalogue."""

from __future__ import annotations

from ..text import data_text, family_text, number_text, size_text
from .entry import Entry
from .names import KINDS


def kind_of(entry: Entry) -> str:
    """`cpu` or `gpu`, as the names of its features end; empty for features that say neither."""
    kind = entry.feature_schema.rpartition("-")[2]
    return kind if kind in KINDS else ""


def facts(entry: Entry) -> dict[str, str]:
    """What the checkpoint is, one line each."""
    lines = {
        "architecture": entry.arch,
        "parameters": number_text(entry.parameters),
        "device family": family_text(entry, devices=True),
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


def searchable(entry: Entry) -> str:
    """All words by which someone may look for it, in lower case: names, devices and their titles, licences."""
    origin = "knowledge base" if entry.is_knowledge_base else entry.origin
    said = [entry.name, entry.version, entry.arch, entry.family, kind_of(entry), origin, entry.feature_schema]
    said += [entry.weights_licence, entry.data_licence, str(entry.data.get("name") or "")]
    said += entry.measured_on
    said += device_titles(entry)
    return " ".join(dict.fromkeys(filter(None, said))).lower()


def device_titles(entry: Entry) -> list[str]:
    """The devices that it learnt from, or else its family's newest, as vendors call them, as far as they are known."""
    from ...zoo.devices import UnknownDeviceError, get_device

    titles = []
    for name in entry.measured_on or (entry.family,):
        try:
            titles.append(get_device(name).title)
        except UnknownDeviceError:
            continue
    return titles
