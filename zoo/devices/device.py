"""A device: one kind of hardware, its TVM target, its spec sheet (TCL table 1), and how to recognise it.

The paper names the parameters of a sheet but gives neither units nor definitions. Read here as:

* turbo frequency: the clock that all cores sustain at once; boost frequency: the highest of a single core.
* L1 and L2 are per core (L1 data only; a shared L2 is divided by its cores), L3 is the whole socket's or,
  where a machine was measured, what that machine sees.
* memory clock: half the data rate of a pin, which is what NVIDIA's tools report.
* FP64 and FP32 are the rates of the ordinary cores, FP16, INT8 and INT4 the highest dense rates (tensor cores
  where there are any, without sparsity).

A number that nobody publishes, or a rate that the hardware does not have, is None, and its source says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import msgspec

from ..errors import TchubError
from .hardware_row import hardware_row

if TYPE_CHECKING:
    import numpy as np

FORMAT = 1
"""Raise it when a field is added, renamed or changes meaning."""

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_TEXTS = ("name", "family", "title", "kind", "vendor", "isa", "microarchitecture", "notes")


@dataclass(frozen=True)
class SpecSheet:
    """Base of the two sheets.

    Attributes:
        sources: for every number, where it is from: a document of the vendor, `derived: ...`,
            `measured: ...`, `unknown: ...` or `not supported: ...`.
    """

    kind: ClassVar[str]
    sources: dict[str, str] = field(hash=False)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the numbers' names in the paper's order."""
        return tuple(f.name for f in fields(cls) if f.name != "sources")

    def values(self) -> dict[str, float | None]:
        """Return the numbers by name, in the paper's order."""
        return {name: getattr(self, name) for name in self.names()}

    def with_values(self, values: Mapping[str, float | None], source: str) -> Self:
        """Return a copy in which some numbers are replaced, all from one source (say `measured: /sys`)."""
        numbers = {name: None if value is None else float(value) for name, value in values.items()}
        return replace(self, **numbers, sources=self.sources | dict.fromkeys(values, source))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the JSON form: name -> {value, source}."""
        return {name: {"value": v, "source": self.sources[name]} for name, v in self.values().items()}


@dataclass(frozen=True)
class CpuSpec(SpecSheet):
    """The eleven CPU parameters of TCL table 1."""

    kind: ClassVar[str] = "cpu"
    cores: float | None
    threads: float | None
    turbo_ghz: float | None
    boost_ghz: float | None
    l1_kib: float | None
    l2_kib: float | None
    l3_mib: float | None
    memory_channels: float | None
    memory_capacity_gib: float | None
    memory_bandwidth_gbs: float | None
    simd_bytes: float | None


@dataclass(frozen=True)
class GpuSpec(SpecSheet):
    """The twelve GPU parameters of TCL table 1 (stream processors count as CUDA cores)."""

    kind: ClassVar[str] = "gpu"
    cuda_cores: float | None
    base_mhz: float | None
    boost_mhz: float | None
    memory_clock_mhz: float | None
    memory_gib: float | None
    memory_bus_bits: float | None
    memory_bandwidth_gbs: float | None
    fp64_tflops: float | None
    fp32_tflops: float | None
    fp16_tflops: float | None
    int8_tops: float | None
    int4_tops: float | None


_SHEETS: dict[str, type[SpecSheet]] = {"cpu": CpuSpec, "gpu": GpuSpec}


class _SourcedNumber(msgspec.Struct, forbid_unknown_fields=True):
    value: Annotated[float, msgspec.Meta(ge=0, le=1e30)] | None
    source: _Text


class _DeviceFields(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON form of a device, for decoding."""

    format: Annotated[int, msgspec.Meta(ge=1)]
    name: _Text
    family: _Text
    title: _Text
    kind: Literal["cpu", "gpu"]
    vendor: _Text
    isa: _Text
    microarchitecture: _Text
    notes: str
    aliases: tuple[str, ...]
    target: dict[str, Any]
    spec: dict[str, _SourcedNumber]
    match: dict[str, Any]


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
        """Return the device as one feature row, float32, shape (width,): 22 for a CPU, 20 for a GPU.

        See the module `hardware_row` for the columns.

        Raises:
            TchubError: another width.
        """
        return hardware_row(self.kind, self.spec.values(), width, self.name)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with an integer `format`."""
        texts = {name: getattr(self, name) for name in _TEXTS}
        parts = {"aliases": list(self.aliases), "target": dict(self.target), "match": dict(self.match)}
        return {"format": FORMAT} | texts | parts | {"spec": self.spec.to_dict()}

    @classmethod
    def from_dict(cls, data: object, where: str = "a device") -> Device:
        """Read the JSON form.

        Raises:
            TchubError: a field is missing, unknown or of the wrong type, or a newer release wrote it.
        """
        check_format(data, where)
        try:
            decoded = msgspec.convert(data, _DeviceFields)
        except msgspec.ValidationError as error:
            raise bad_device(where, str(error)) from error
        sheet = _SHEETS[decoded.kind]
        if wrong := set(decoded.spec) ^ set(sheet.names()):
            raise bad_device(where, f"its spec has missing or unknown numbers: {', '.join(sorted(wrong))}")
        if not isinstance(decoded.target.get("kind"), str):
            raise bad_device(where, "its target has no kind")
        sources = {name: decoded.spec[name].source for name in sheet.names()}
        return cls(
            **{name: getattr(decoded, name) for name in _TEXTS},
            aliases=decoded.aliases,
            target=decoded.target,
            match=decoded.match,
            spec=sheet(**{name: decoded.spec[name].value for name in sheet.names()}, sources=sources),
        )


def bad_device(where: str, problem: str) -> TchubError:
    """Return the error about a device's data that is not of the right form."""
    return TchubError(f"{where}: {problem}", remedy="correct the file, or fetch it again", where=where)


def check_format(data: object, where: str) -> None:
    """Raise TchubError where a newer release wrote the data."""
    number = data.get("format") if isinstance(data, Mapping) else None
    if isinstance(number, int) and number > FORMAT:
        raise TchubError(f"{where} has format {number}; this release reads up to {FORMAT}", remedy="upgrade tchub")
