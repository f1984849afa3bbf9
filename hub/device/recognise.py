"""Which known device a machine's facts fit, and that device's spec sheet with what was measured put in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...zoo.devices import CpuSpec, Device, distance, list_devices
from .host_facts import HostFacts

_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel", "ARM": "arm"}
_SIMD_BYTES = (("avx512f", 64), ("avx", 32), ("sse2", 16), ("asimd", 16))
_HIDDEN = "the brand string names no part (a virtual machine hides it): recognised by the CPUID numbers alone"


def identify(facts: HostFacts) -> tuple[Device | None, bool, list[str]]:
    """The known device of these facts.

    Returns:
        the device (None: nothing near), whether its own marks match, and the reasons.
    """
    seen = _marks(facts)
    for device in list_devices("cpu"):
        if _matches(device.match, facts):
            hidden = [] if any(c.isdigit() for c in facts.brand) or not facts.brand else [_HIDDEN]
            return device, True, [f"{device.name}: {seen} is {device.title}", *hidden]
    kin = [d for d in list_devices("cpu") if d.family in facts.brand.lower() and d.isa == facts.arch]
    if kin:
        local = localised(generic(facts), False, "", {}, facts)
        near = min(kin, key=lambda d: distance(local, d).gap)
        why = f"no spec sheet for {seen}; nearest of the family {near.family}: {near.name}"
        return near, False, [why]
    return (
        None,
        False,
        [f"no spec sheet for {seen}: a generic {facts.arch} device, with what is measured here"],
    )


def match_gpu(name: str) -> str | None:
    """The known device of a GPU by its driver's name, the longest match first; None where there is none."""
    words = name.replace("-", " ").split()
    found = [d for d in list_devices("gpu") if _in_order(d.match["gpu_name"].split(), words)]
    best = max(found, key=lambda d: len(d.match["gpu_name"]), default=None)
    return best.name if best else None


def localised(base: Device, exact: bool, mcpu: str, target: dict[str, Any], facts: HostFacts) -> Device:
    """`base` with this machine's target and what was measured here; renamed where `base` only stands in."""
    simd = next((float(width) for flag, width in _SIMD_BYTES if flag in facts.flags), None)
    measured = {
        "cores": facts.cores,
        "threads": facts.threads,
        "l1_kib": facts.l1_kib,
        "l2_kib": facts.l2_kib,
        "l3_mib": facts.l3_mib,
        "simd_bytes": simd,
    }
    known = {name: value for name, value in measured.items() if value is not None}
    spec = base.spec.with_values(known, "measured: this machine")
    if exact:
        note = f"{base.notes} Measured on this machine: {', '.join(known)}.".strip()
        return replace(base, target=target, spec=spec, notes=note)
    if base.family.startswith("generic-"):
        return replace(base, target=target, spec=spec, microarchitecture=mcpu or "unknown")
    rest = {name: value for name, value in base.spec.values().items() if name not in known and value is not None}
    return replace(
        base,
        name=f"{base.family}-other",
        title=facts.brand,
        microarchitecture=mcpu,
        aliases=(),
        target=target,
        match={},
        spec=spec.with_values(rest, f"stands in: {base.name}"),
        notes=f"No spec sheet for this CPU: the numbers that cannot be measured are those of {base.name}.",
    )


def generic(facts: HostFacts) -> Device:
    """A device of which nothing is known but what the facts say."""
    nothing = dict.fromkeys(CpuSpec.names())
    return Device(
        name=f"generic-{facts.arch}",
        family=f"generic-{facts.arch}",
        title=facts.brand or f"unknown {facts.arch} CPU",
        kind="cpu",
        vendor=_VENDORS.get(facts.vendor_id, facts.vendor_id.lower() or "unknown"),
        isa=facts.arch,
        microarchitecture="unknown",
        aliases=(),
        target={"kind": "llvm", "mcpu": "generic", "num-cores": facts.usable},
        spec=CpuSpec(**nothing, sources=dict.fromkeys(nothing, "unknown: no spec sheet for this CPU")),
    )


def _matches(match: Mapping[str, Any], facts: HostFacts) -> bool:
    """Every mark that the device names must hold; facts without a CPUID model match no range."""
    low, high = match.get("model_range", (None, None))
    return (
        match["vendor_id"] == facts.vendor_id
        and match.get("cpu_family", facts.cpu_family) == facts.cpu_family
        and (low is None or (facts.model is not None and low <= facts.model <= high))
        and match.get("arm_part", facts.arm_part) == facts.arm_part
        and match.get("brand", "").lower() in facts.brand.lower()
        and match.get("sys_vendor", "").lower() in facts.sys_vendor.lower()
    )


def _marks(facts: HostFacts) -> str:
    if facts.cpu_family is not None:
        numbers = f"{facts.vendor_id} family {facts.cpu_family} model {facts.model}"
    else:
        numbers = f"{facts.vendor_id or 'a CPU'} {facts.arm_part or ''}".strip()
    return f"{numbers} ({facts.brand})" if facts.brand else numbers


def _in_order(needle: list[str], words: list[str]) -> bool:
    """Whether `needle` stands in `words` as whole words, in a row."""
    return any(words[i : i + len(needle)] == needle for i in range(len(words) - len(needle) + 1))
