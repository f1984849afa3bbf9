"""`Device`: one kind of hardware, its TVM target, its spec sheet, and how to recognise it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import BadDeviceError, NewerDeviceFormatError
from .row import hardware_row
from .sheet import SHEETS, CpuSpec, GpuSpec, SpecSheet

if TYPE_CHECKING:
    import numpy as np

__all__ = ["FORMAT", "CpuSpec", "Device", "GpuSpec", "SpecSheet"]

FORMAT = 1
"""Raise it when a field is added, renamed or changes meaning; `from_dict` then reads the older form too."""

_TEXT = ("name", "family", "title", "kind", "vendor", "isa", "microarchitecture", "notes")


@dataclass(frozen=True)
class Device:
    """One kind of hardware.

    Attributes:
        name: unique, e.g. `epyc-turin`.
        family: what checkpoints are named by, e.g. `epyc`.
        title: for people, e.g. "AMD EPYC 7452 (Rome, Zen 2)".
        kind: "cpu" or "gpu".
        vendor: e.g. "amd", "intel", "amazon", "nvidia".
        isa: instruction set: "x86-64", "aarch64", "ptx" or "gcn".
        microarchitecture: e.g. "zen5".
        aliases: other names that people use.
        target: the TVM target as a dict, which `tvm.target.Target` accepts.
        spec: the numbers of TCL table 1.
        match: how to recognise it on a machine, all conditions together: CPUID vendor, family and model
            range, Arm part, a word of the brand string or of the machine's maker; or words of a GPU's name.
        notes: what a reader of the numbers should know.
    """

    name: str
    family: str
    title: str
    kind: str
    vendor: str
    isa: str
    microarchitecture: str
    aliases: tuple[str, ...]
    target: dict[str, Any] = field(hash=False)
    spec: SpecSheet = field(hash=False)
    match: dict[str, Any] = field(default_factory=dict, hash=False)
    notes: str = ""

    def hardware_row(self, width: int) -> np.ndarray:
        """The device as one feature row, float32, shape (width,): 22 for a CPU, 20 for a GPU.

        See `row.hardware_row` for what each entry holds.

        Raises:
            HardwareRowError: another width.
        """
        return hardware_row(self.spec, width, self.name)

    def to_dict(self) -> dict[str, Any]:
        """JSON form, with an integer `format`."""
        texts = {name: getattr(self, name) for name in _TEXT}
        return (
            {"format": FORMAT}
            | texts
            | {
                "aliases": list(self.aliases),
                "target": dict(self.target),
                "match": dict(self.match),
                "spec": self.spec.to_dict(),
            }
        )

    @classmethod
    def from_dict(cls, data: object, where: str = "a device") -> Device:
        """Read the JSON form.

        Raises:
            NewerDeviceFormatError: written by a newer release.
            BadDeviceError: a field is missing, unknown or of the wrong type.
        """
        data = checked_object(data, {"format", "aliases", "target", "match", "spec", *_TEXT}, where)
        check_format(data["format"], where)
        for name in _TEXT:
            if not isinstance(data[name], str) or not (data[name] or name == "notes"):
                raise BadDeviceError(f"{where}: {name} is not a text", where=where, field=name)
        for name in ("target", "match"):
            if not isinstance(data[name], Mapping):
                raise BadDeviceError(f"{where}: {name} is not an object", where=where, field=name)
        if data["kind"] not in SHEETS:
            raise BadDeviceError(f"{where}: kind is neither cpu nor gpu", where=where, field="kind")
        if not isinstance(data["target"].get("kind"), str):
            raise BadDeviceError(f"{where}: the target has no kind", where=where, field="target")
        aliases = data["aliases"]
        if not isinstance(aliases, list | tuple) or not all(isinstance(a, str) for a in aliases):
            raise BadDeviceError(f"{where}: aliases is not a list of texts", where=where, field="aliases")
        return cls(
            **{name: data[name] for name in _TEXT},
            aliases=tuple(aliases),
            target=dict(data["target"]),
            match=dict(data["match"]),
            spec=SHEETS[data["kind"]].from_dict(data["spec"], where),
        )


def checked_object(data: object, names: set[str], where: str) -> Mapping[str, Any]:
    """`data` if it is an object with exactly these fields.

    Raises:
        BadDeviceError: it is not.
    """
    if not isinstance(data, Mapping):
        raise BadDeviceError(f"{where} is not an object", where=where, field="")
    if missing := sorted(names - set(data)):
        raise BadDeviceError(f"{where}: missing: {', '.join(missing)}", where=where, field=missing[0])
    if unknown := sorted(set(data) - names):
        raise BadDeviceError(f"{where}: unknown: {', '.join(unknown)}", where=where, field=unknown[0])
    return data


def check_format(found: object, where: str) -> None:
    """Accept this release's format only.

    Raises:
        NewerDeviceFormatError: a newer one.
        BadDeviceError: not a format number.
    """
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise BadDeviceError(f"{where}: format is not a positive integer", where=where, field="format")
    if found > FORMAT:
        raise NewerDeviceFormatError(
            f"{where} has format {found}; this release reads up to {FORMAT}",
            remedy="upgrade tchub",
            where=where,
            found=found,
            supported=FORMAT,
        )
