"""The devices that tchub knows (one data file a family in `data/`, read on first use), and how near two of them are."""

import difflib
import json
import math
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import platformdirs

from ..errors import TchubError
from .device import FORMAT, Device, bad_device, check_format


class _FamilyFields(msgspec.Struct, forbid_unknown_fields=True):
    """A family file: what its devices share, and the rest of each."""

    family: str
    kind: str
    vendor: str
    isa: str
    devices: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]


class UnknownDeviceError(TchubError):
    """No device of this name. Fields: name, nearest."""


def get_device(name: str) -> Device:
    """Return the device of this name or alias; case, spaces and underscores do not matter.

    A family's name gives the family's newest device (the last of its file).

    Raises:
        UnknownDeviceError: no such device; carries the nearest names.
    """
    if device := known_device(name):
        return device
    nearest = difflib.get_close_matches(_normal(name), _names(_own_files()), n=3, cutoff=0.5)
    raise UnknownDeviceError(
        f"no device is called {name!r}" + (f"; nearest: {', '.join(nearest)}" if nearest else ""),
        remedy=f"see `tchub devices`, or write its sheet: tchub devices add {name} --from local|FILE|NEAREST",
        name=name,
        nearest=nearest,
    )


def known_device(name: str) -> Device | None:
    """Return the device as `get_device` does; None where it is unknown."""
    return _names(_own_files()).get(_normal(name))


def list_devices(kind: str | None = None) -> list[Device]:
    """Return all devices, or those of a kind ("cpu" or "gpu"): CPUs first, by family, in the order of its file."""
    return [d for d in _load(_own_files()) if kind in (None, d.kind)]


def own_folder() -> Path:
    """Return the folder of the user's own devices, one family file each, beside the checkpoints adapted here."""
    return Path(os.environ.get("TCHUB_HOME") or platformdirs.user_data_dir("tchub")).expanduser() / "devices"


def read_family(data: object, where: str) -> list[Device]:
    """Return the devices of one family file's JSON.

    Raises:
        TchubError: the file is not of the right form, or a newer release wrote it.
    """
    try:
        family = msgspec.convert(check_format(data, where), _FamilyFields)
    except msgspec.ValidationError as error:
        raise bad_device(where, str(error)) from error
    shared = {name: getattr(family, name) for name in ("family", "kind", "vendor", "isa")} | {"format": FORMAT}
    return [Device.from_dict(shared | entry, f"{where}: {entry.get('name')}") for entry in family.devices]


def _own_files() -> tuple[Path, ...]:
    return tuple(sorted(own_folder().glob("*.json")))


@cache
def _load(own: tuple[Path, ...]) -> tuple[Device, ...]:
    devices: list[Device] = []
    for file in (*Path(__file__).with_name("data").glob("*.json"), *own):
        devices += read_family(json.loads(file.read_text(encoding="utf-8")), file.name)
    order = sorted(range(len(devices)), key=lambda i: (devices[i].kind, devices[i].family, i))
    return tuple(devices[i] for i in order)


@cache
def _names(own: tuple[Path, ...]) -> dict[str, Device]:
    """Return every name, alias and family name (in this order of preference) -> device."""
    devices = _load(own)
    names = {_normal(device.family): device for device in devices}
    names |= {_normal(alias): device for device in devices for alias in device.aliases}
    return names | {_normal(device.name): device for device in devices}


def _normal(name: str) -> str:
    return "-".join(name.strip().lower().replace("_", " ").split())


SAME_DEVICE, SAME_FAMILY, SAME_ISA_AND_VENDOR, SAME_ISA, OTHER, INCOMPATIBLE = range(6)


@dataclass(frozen=True, order=True)
class Distance:
    """Ordered: the smaller, the nearer.

    Attributes:
        rank: 0 same device, 1 same family, 2 same instruction set and vendor, 3 same instruction set,
            4 other of the same kind, 5 a CPU against a GPU, which never fit.
        gap: how far the spec sheets are apart: root mean square of the differences of log2(1 + x) over
            the numbers that both know; so 1 means a factor of two. It decides within a rank.
        reason: a sentence for people.
    """

    rank: int
    gap: float
    reason: str = field(compare=False)


def distance(a: Device, b: Device) -> Distance:
    """Return the distance of two devices; symmetric, and rank 0 with gap 0 for a device and itself."""
    if a.kind != b.kind:
        return Distance(INCOMPATIBLE, math.inf, f"{a.name} is a {a.kind}, {b.name} is a {b.kind}")
    gap = _gap(a, b)
    apart = f"spec sheets {2**gap:.2g}x apart"
    if a.name == b.name:
        return Distance(SAME_DEVICE, gap, f"the same device, {a.name}")
    if a.family == b.family:
        return Distance(SAME_FAMILY, gap, f"the same family, {a.family} ({a.name} and {b.name}), {apart}")
    if a.isa == b.isa and a.vendor == b.vendor:
        return Distance(SAME_ISA_AND_VENDOR, gap, f"both {a.vendor} {a.isa}, another family ({b.family}), {apart}")
    if a.isa == b.isa:
        return Distance(SAME_ISA, gap, f"both {a.isa}, another vendor ({a.vendor} and {b.vendor}), {apart}")
    return Distance(OTHER, gap, f"another instruction set ({a.isa} and {b.isa}), {apart}")


def _gap(a: Device, b: Device) -> float:
    theirs = b.spec.values()
    both = ((x, theirs[name]) for name, x in a.spec.values().items())
    steps = [math.log2(1 + x) - math.log2(1 + y) for x, y in both if x is not None and y is not None]
    return math.hypot(*steps) / math.sqrt(len(steps)) if steps else math.inf
