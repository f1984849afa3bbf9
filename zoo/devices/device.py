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
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from ..errors import TchubError

if TYPE_CHECKING:
    import numpy as np

SCALES: dict[str, dict[str, tuple[float, float]]] = {
    "cpu": {
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
    },
    "gpu": {
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
    },
}
"""The numbers of a kind of device, those of TCL table 1 in its order (stream processors count as CUDA cores).

Each has the unit and the scale of log2(1 + x / unit) / scale, see `Device.hardware_row`.
"""
_GPU_ALWAYS_KNOWN = ("cuda_cores", "memory_gib", "memory_bus_bits", "memory_bandwidth_gbs")

FORMAT = 1
"""Raise it when a field is added, renamed or changes meaning."""

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class SourcedNumber(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number of a spec sheet, and where it is from.

    A source is a document of the vendor, `derived: ...`, `measured: ...`, `unknown: ...` or `not supported: ...`.
    """

    value: Annotated[float, msgspec.Meta(ge=0, le=1e30)] | None
    source: _Text


@dataclass(frozen=True)
class SpecSheet:
    """The numbers of a device by name, in the order of `SCALES`."""

    numbers: dict[str, SourcedNumber]

    @property
    def sources(self) -> dict[str, str]:
        """Where each number is from."""
        return {name: number.source for name, number in self.numbers.items()}

    def values(self) -> dict[str, float | None]:
        """Return the numbers by name, None for an unknown one."""
        return {name: number.value for name, number in self.numbers.items()}

    def with_values(self, values: Mapping[str, float | None], source: str) -> SpecSheet:
        """Return a copy in which some numbers are replaced, all from one source (say `measured: /sys`)."""
        numbers = {name: SourcedNumber(None if x is None else float(x), source) for name, x in values.items()}
        return SpecSheet(self.numbers | numbers)


@dataclass(frozen=True, kw_only=True)
class Device:
    """One kind of hardware.

    Attributes:
        name: unique, e.g. `epyc-turin`.
        family: what checkpoints are named by, e.g. `epyc`.
        title: for people, e.g. "AMD EPYC 7452 (Rome, Zen 2)".
        vendor: e.g. "amd", "intel", "amazon", "nvidia".
        isa: instruction set: "x86-64", "aarch64", "ptx" or "gcn".
        microarchitecture: e.g. "zen5".
        notes: what a reader of the numbers should know.
        aliases: other names that people use.
        target: the TVM target as a dict, which `tvm.target.Target` accepts.
        match: how to recognise it on a machine, all conditions together: CPUID vendor, family and model
            range, a flag, Arm part, a word of the brand string or of the machine's maker; or words of a GPU's name.
        spec: the numbers of TCL table 1.
    """

    name: _Text
    family: _Text
    title: _Text
    kind: Literal["cpu", "gpu"]
    vendor: _Text
    isa: _Text
    microarchitecture: _Text
    notes: str = ""
    aliases: tuple[str, ...]
    target: dict[str, Any] = field(hash=False)
    match: dict[str, Any] = field(default_factory=dict, hash=False)
    spec: SpecSheet = field(hash=False)

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
        scales, unmarked = SCALES[self.kind], () if self.kind == "cpu" else _GPU_ALWAYS_KNOWN
        if missing := [name for name in unmarked if values[name] is None]:
            raise TchubError(f"{self.name}: the spec sheet lacks {', '.join(missing)}", device=self.name)
        numbers = [np.log2(1 + (values[name] or 0.0) / unit) / scale for name, (unit, scale) in scales.items()]
        markers = [float(values[name] is not None) for name in scales if name not in unmarked]
        return np.asarray([*map(float, numbers), *markers], dtype=np.float32)

    def roofline(self, cores: float | None = None) -> tuple[float, float] | None:
        """Return the FLOP/s in float32 and the bytes a second that no program exceeds, by the spec sheet.

        A core of a CPU takes two multiply-adds of a vector a cycle, and one vector from its second-level cache; its
        clock is that of all cores, or the boost where that is not known. A card has its own rates.

        Args:
            cores: of a CPU, that the programs run on; None: all.

        Returns:
            None where the sheet lacks a number.
        """
        rate = self.spec.values()
        if self.kind == "gpu":
            tera, giga = rate["fp32_tflops"], rate["memory_bandwidth_gbs"]
            return (tera * 1e12, giga * 1e9) if tera and giga else None
        clock = rate["turbo_ghz"] or rate["boost_ghz"]
        cores, vector = cores or rate["cores"], rate["simd_bytes"]
        if not (clock and cores and vector):
            return None
        bandwidth = clock * 1e9 * cores * vector
        return bandwidth * 2 * 2 / 4, bandwidth

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with an integer `format`."""
        plain = msgspec.to_builtins(self)
        return {"format": FORMAT} | plain | {"aliases": list(self.aliases), "spec": plain["spec"]["numbers"]}

    @classmethod
    def from_dict(cls, data: object, where: str = "a device") -> Device:
        """Read the JSON form.

        Raises:
            TchubError: a field is missing, unknown or of the wrong type, or a newer release wrote it.
        """
        given = check_format(data, where)
        names = {one.name for one in fields(cls)}
        if wrong := names ^ given.keys():
            raise bad_device(where, f"missing or unknown fields: {', '.join(sorted(wrong))}")
        try:
            device = msgspec.convert(given | {"spec": {"numbers": given["spec"]}}, cls)
        except msgspec.ValidationError as error:
            raise bad_device(where, str(error)) from error
        numbers, order = device.spec.numbers, SCALES[device.kind]
        if wrong := numbers.keys() ^ order.keys():
            raise bad_device(where, f"its spec has missing or unknown numbers: {', '.join(sorted(wrong))}")
        if not isinstance(device.target.get("kind"), str):
            raise bad_device(where, "its target has no kind")
        return replace(device, spec=SpecSheet({name: numbers[name] for name in order}))


def bad_device(where: str, problem: str) -> TchubError:
    """Return the error about a device's data that is not of the right form."""
    return TchubError(f"{where}: {problem}", remedy="correct the file, or fetch it again", where=where)


def check_format(data: object, where: str) -> dict[str, Any]:
    """Return the fields of an object but its `format`; raise TchubError where that is none, or of a newer release."""
    given = dict(data) if isinstance(data, Mapping) else {}
    number = given.pop("format", None)
    if type(number) is not int or number < 1:
        raise bad_device(where, "its format is no positive number")
    if number > FORMAT:
        raise TchubError(f"{where} has format {number}; this release reads up to {FORMAT}", remedy="upgrade tchub")
    return given
