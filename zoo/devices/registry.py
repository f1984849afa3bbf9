"""The devices that tchub knows: one data file a family in `data/`, read once, on first use."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .errors import BadDeviceError, UnknownDeviceError
from .spec import FORMAT, Device, check_format, checked_object

_FAMILY_FIELDS = {"format", "family", "kind", "vendor", "isa", "devices"}


def get_device(name: str) -> Device:
    """The device of this name or alias; case, spaces and underscores do not matter.

    A family's name gives the family's newest device (the last of its file).

    Raises:
        UnknownDeviceError: no such device; carries the nearest names.
    """
    names = _names()
    key = _normal(name)
    if key not in names:
        nearest = difflib.get_close_matches(key, names, n=3, cutoff=0.5)
        raise UnknownDeviceError(
            f"no device is called {name!r}" + (f"; nearest: {', '.join(nearest)}" if nearest else ""),
            remedy="see `tchub devices` for all names, `tchub devices local` for this machine",
            name=name,
            nearest=nearest,
        )
    return names[key]


def list_devices(kind: str | None = None) -> list[Device]:
    """All devices, CPUs first, by family and in the order of the family's file.

    Args:
        kind: "cpu" or "gpu" to list one kind only.
    """
    return [d for d in _load() if kind in (None, d.kind)]


def list_families(kind: str | None = None) -> list[str]:
    """The families' names, in the order of `list_devices`."""
    return list(dict.fromkeys(d.family for d in list_devices(kind)))


def read_family(data: object, where: str) -> list[Device]:
    """The devices of one family file's JSON.

    Raises:
        BadDeviceError: the file is not of the right form.
        NewerDeviceFormatError: written for a newer release.
    """
    data = checked_object(data, _FAMILY_FIELDS, where)
    check_format(data["format"], where)
    if not isinstance(data["devices"], list) or not data["devices"]:
        raise BadDeviceError(f"{where}: devices is not a list with entries", where=where, field="devices")
    return [_read_device(data, entry, where) for entry in data["devices"]]


def _read_device(family: Mapping[str, Any], entry: object, where: str) -> Device:
    if not isinstance(entry, Mapping):
        raise BadDeviceError(f"{where}: a device is not an object", where=where, field="devices")
    shared = {name: family[name] for name in ("family", "kind", "vendor", "isa")}
    return Device.from_dict({"format": FORMAT} | shared | dict(entry), f"{where}: {entry.get('name')}")


@cache
def _load() -> tuple[Device, ...]:
    devices: list[Device] = []
    for file in Path(__file__).with_name("data").glob("*.json"):
        devices += read_family(json.loads(file.read_text(encoding="utf-8")), file.name)
    order = sorted(range(len(devices)), key=lambda i: (devices[i].kind, devices[i].family, i))
    return tuple(devices[i] for i in order)


@cache
def _names() -> dict[str, Device]:
    """Every name, alias and family name (in this order of preference) -> device."""
    names: dict[str, Device] = {}
    for device in _load():
        names[_normal(device.family)] = device
    for device in _load():
        names |= {_normal(alias): device for alias in device.aliases}
    for device in _load():
        names[_normal(device.name)] = device
    return names


def _normal(name: str) -> str:
    return "-".join(name.strip().lower().replace("_", " ").split())
