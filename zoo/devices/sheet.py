"""Spec sheets: the numbers of TCL table 1, each with its unit in its name and its source beside it.

The paper names the parameters but gives neither units nor definitions. Read here as:

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
from typing import Any, ClassVar, Self

from .errors import BadDeviceError


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
        """The numbers' names in the paper's order."""
        return tuple(f.name for f in fields(cls) if f.name != "sources")

    def values(self) -> dict[str, float | None]:
        """The numbers by name, in the paper's order."""
        return {name: getattr(self, name) for name in self.names()}

    def with_values(self, values: Mapping[str, float | None], source: str) -> Self:
        """A copy in which some numbers are replaced, all from one source (say `measured: /sys`)."""
        sources = self.sources | dict.fromkeys(values, source)
        return replace(self, **{name: _number(v) for name, v in values.items()}, sources=sources)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """JSON form: name -> {value, source}."""
        return {name: {"value": v, "source": self.sources[name]} for name, v in self.values().items()}

    @classmethod
    def from_dict(cls, data: object, where: str = "a spec sheet") -> Self:
        """Read the JSON form; every number must be there, with a source, and no other.

        Raises:
            BadDeviceError: a number is missing, unknown, negative, not a number, or has no source.
        """
        if not isinstance(data, Mapping):
            raise BadDeviceError(f"{where} is not an object", where=where, field="spec")
        wrong = set(data) ^ set(cls.names())
        if wrong:
            raise BadDeviceError(f"{where}: missing or unknown: {', '.join(sorted(wrong))}", where=where, field="spec")
        values, sources = {}, {}
        for name in cls.names():
            values[name], sources[name] = _entry(data[name], name, where)
        return cls(**values, sources=sources)


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


SHEETS: dict[str, type[SpecSheet]] = {"cpu": CpuSpec, "gpu": GpuSpec}


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _entry(entry: object, name: str, where: str) -> tuple[float | None, str]:
    """One {value, source} pair, checked."""
    if not isinstance(entry, Mapping) or set(entry) != {"value", "source"}:
        raise BadDeviceError(f"{where}: {name} is not {{value, source}}", where=where, field=name)
    value, source = entry["value"], entry["source"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    if value is not None and not is_number:
        raise BadDeviceError(f"{where}: {name} is not a number: {value!r}", where=where, field=name)
    if not isinstance(source, str) or not source:
        raise BadDeviceError(f"{where}: {name} has no source", where=where, field=name)
    return _number(value), source
