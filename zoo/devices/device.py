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

if TYPE_CHECKING:
    import numpy as np

# name -> (unit, scale) of log2(1 + x / unit) / scale
CPU_SCALES: dict[str, tuple[float, float]] = {
    "cores": (1, 3),
    "threads": (1, 3),
    "turbo_ghz": (1, 1),
    "boost_ghz": (1, 1),
    "l1_kib": (8, 1),
    "l2_kib": (64, 1.5),
    "l3_mib": (1, 3),
    "memory_channels": (1, 1.25),
    "memory_capacity_gib": (16, 3),
    "memory_bandwidth_gbs": (8, 2),
    "simd_bytes": (8, 1),
}
GPU_SCALES: dict[str, tuple[float, float]] = {
    "cuda_cores": (256, 2),
    "base_mhz": (500, 1),
    "boost_mhz": (500, 1),
    "memory_clock_mhz": (500, 1.5),
    "memory_gib": (4, 2),
    "memory_bus_bits": (64, 2.25),
    "memory_bandwidth_gbs": (100, 2),
    "fp64_tflops": (0.1, 3),
    "fp32_tflops": (1, 2),
    "fp16_tflops": (4, 2.5),
    "int8_tops": (8, 2.5),
    "int4_tops": (16, 2.5),
}
_GPU_ALWAYS_KNOWN = ("cuda_cores", "memory_gib", "memory_bus_bits", "memory_bandwidth_gbs")

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

    def hardware_row(self) -> np.ndarray:
        """Return the device as the last row of a feature matrix (TCL section 5.1, table 1), float32: (22,) or (20,).

        The paper gives neither order nor scale of that row. Here a CPU's, of width 22, has the eleven numbers in the
        order of table 1, then for each of them 1 where it is known and 0 where not. A GPU's, of width 20, has the
        twelve numbers, then such markers of base, boost and memory clock, FP64, FP32, FP16, INT8 and INT4 (the others
        are always published). A number x becomes log2(1 + x / unit) / scale, about 0 to 3 over the hardware of the
        last ten years, an unknown one 0. The row is never all zero, so that it is never taken for padding.

        Raises:
            TchubError: a GPU's sheet lacks a number that has no marker.
        """
        import numpy as np

        values = self.spec.values()
        scales, unmarked = (CPU_SCALES, ()) if self.kind == "cpu" else (GPU_SCALES, _GPU_ALWAYS_KNOWN)
        if missing := [name for name in unmarked if values[name] is None]:
            raise TchubError(f"{self.name}: the spec sheet lacks {', '.join(missing)}", device=self.name)
        numbers = [np.log2(1 + (values[name] or 0.0) / unit) / scale for name, (unit, scale) in scales.items()]
        markers = [float(values[name] is not None) for name in scales if name not in unmarked]
        return np.asarray([*map(float, numbers), *markers], dtype=np.float32)

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
