"""Which device this machine is: its family, its TVM target, and its spec sheet with what is measured here."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...zoo.devices import SCALES, Device, SourcedNumber, SpecSheet, distance, get_device, list_devices, own_folder
from ...zoo.files import write_files
from ...zoo.untrusted import parse_json, read_plain
from .errors import DeviceError
from .extensions import cpu_name
from .host_facts import HostFacts, read_host_facts

_FLAGS_OF_INTEREST = (
    *("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx_vnni", "amx_tile", "amx_bf16", "asimd", "asimddp", "fphp", "sve", "i8mm", "bf16"),
)


@dataclass(frozen=True)
class LocalDevice:
    """This machine.

    Attributes:
        device: the spec sheet of the device that it is or is nearest to, with what was measured here.
        cpu_model: the CPU's own brand string.
        isa: instruction-set extensions that matter for generated code.
        cores: to compile for and measure on.
        mcpu: LLVM's name of the CPU, or a card's architecture.
        exact: False where the nearest known device stands in.
        reasons: how each of the above was found, one line each.
        gpus: names of NVIDIA's.
    """

    device: Device
    cpu_model: str
    exact: bool
    reasons: tuple[str, ...]
    isa: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return self.device.family

    @property
    def target(self) -> dict[str, Any]:
        return self.device.target

    @property
    def mcpu(self) -> str:
        return str(self.target.get("mcpu") or self.target.get("arch", "generic"))

    @property
    def cores(self) -> int:
        return int(self.target.get("num-cores", 1))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        plain = {k: getattr(self, k) for k in ("family", "cpu_model", "cores", "mcpu", "target", "exact")}
        return {
            "device": self.device.to_dict(),
            **plain,
            "isa": list(self.isa),
            "reasons": list(self.reasons),
            "gpus": [{"name": name, "device": match_gpu(name)} for name in self.gpus],
        }


def detect_local(
    cores: int | None = None, *, facts: HostFacts | None = None, host_cpu: str | None = None, ask_llvm: bool = True
) -> LocalDevice:
    """Detect this machine's CPU, and list its GPUs. An unknown machine gets a generic device.

    Args:
        cores: to compile for; by default all physical ones that this process may use.
        host_cpu: LLVM's name of the CPU, instead of asking TVM for it (which imports TVM).
        ask_llvm: whether TVM may be imported to ask; without, a known device's target decides.

    Raises:
        DeviceError: `cores` is less than 1 or more than this process may use.
    """
    facts = facts or read_host_facts()
    why_cores = "all physical cores that this process may use" if cores is None else "asked for"
    if cores is None:
        cores = facts.usable_cores or facts.usable
    if not 1 <= cores <= facts.usable:
        raise DeviceError(
            f"cannot use {cores} cores: this process may run on {facts.usable}",
            remedy=f"ask for 1 to {facts.usable} cores, or widen the process's CPU affinity",
        )
    mcpu, why = host_cpu or "generic", "LLVM's name of this CPU" if host_cpu else "LLVM could not be asked"
    is_known = False  # True: LLVM was asked and the flags are known, so that "generic" is the answer
    if host_cpu is None and ask_llvm:
        try:
            from tvm.target import codegen
        except (ImportError, OSError):  # no TVM, or libraries that do not load: `why` says that LLVM was not asked
            codegen = None
        if codegen and codegen.llvm_version_major(allow_none=True):
            mcpu, why = cpu_name(str(codegen.llvm_get_system_cpu()), facts)
            is_known = bool(facts.flags)
    base, exact, reasons = identify(facts, mcpu)
    if mcpu == "generic" and base is not None and exact and not is_known:
        mcpu, why = str(base.target["mcpu"]), f"the target of {base.name}"
    target: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu, "num-cores": cores}
    if facts.arch == "aarch64":
        target["mtriple"] = "aarch64-linux-gnu"
    device = localised(base or generic(facts), exact, mcpu, target, facts)
    reasons += [f"mcpu {mcpu}: {why}", f"num-cores {cores}: {why_cores}"]
    return LocalDevice(
        device=device,
        cpu_model=facts.brand or "unknown",
        exact=exact,
        reasons=tuple(reasons),
        isa=tuple(flag for flag in _FLAGS_OF_INTEREST if flag in facts.flags),
        gpus=facts.gpus,
    )


_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel", "ARM": "arm"}
SIMD_BYTES = (("avx512f", 64), ("avx", 32), ("sse2", 16), ("asimd", 16))
_HIDDEN = "the brand string names no part (a virtual machine hides it): recognised by the CPUID numbers alone"


def identify(facts: HostFacts, mcpu: str = "generic") -> tuple[Device | None, bool, list[str]]:
    """Return the device of these facts (None: nothing near), whether its own marks match, and the reasons.

    Args:
        mcpu: LLVM's name of the CPU; of a family's devices, those that LLVM calls alike are the nearest.
    """
    seen = f"{facts.vendor_id or 'a CPU'} {facts.arm_part or ''}".strip()
    if facts.cpu_family is not None:
        seen = f"{facts.vendor_id} family {facts.cpu_family} model {facts.model}"
    seen += f" ({facts.brand})" if facts.brand else ""
    matches = [device for device in list_devices("cpu") if _matches(device.match, facts)]
    if matches:
        device = max(matches, key=lambda one: len(one.match.get("brand", "")))  # a part before all of its kind
        hidden = [] if any(c.isdigit() for c in facts.brand) or not facts.brand else [_HIDDEN]
        return device, True, [f"{device.name}: {seen} is {device.title}", *hidden]
    cpus = [device for device in list_devices("cpu") if device.isa == facts.arch]
    kin = [device for device in cpus if device.family in facts.brand.lower()]
    if facts.arm_part:  # the brand is that of the core, which machines of other makers have too
        kin = kin or [device for device in cpus if device.match.get("arm_part") == facts.arm_part]
    if kin:
        local = localised(generic(facts), False, "", {}, facts)
        near = min(kin, key=lambda d: (d.target.get("mcpu") != mcpu, distance(local, d).gap))
        why = f"no spec sheet for {seen}; nearest of the family {near.family}: {near.name}"
        return near, False, [why]
    return (None, False, [f"no spec sheet for {seen}: a generic {facts.arch} device, with what is measured here"])


def match_gpu(name: str) -> str | None:
    """Return the known device of a GPU by its driver's name, the longest match first; None where there is none."""
    whole = f" {name.replace('-', ' ')} "
    matches = [d for d in list_devices("gpu") if f" {d.match['gpu_name']} " in whole]
    best = max(matches, key=lambda d: len(d.match["gpu_name"]), default=None)
    return best.name if best else None


def add_device(name: str, source: str) -> Device:
    """Write a user's own spec sheet, which all commands then find by its name; it is a family of its own.

    Args:
        source: `local` for what is measured of this machine, a JSON file as `tchub devices NAME --json` prints it, or
            the name of the nearest device, whose numbers stand in.

    Raises:
        DeviceError: the name is no name, or taken.
        UnknownDeviceError: `source` is neither a file nor a device.
        TchubError: the file is not of the right form.
    """
    taken = any(name in (device.name, device.family, *device.aliases) for device in list_devices())
    if taken or not re.fullmatch(r"[a-z0-9][a-z0-9.+-]{0,63}", name):
        raise DeviceError(
            f"no device can be called {name!r}" + (": another one is" if taken else ""),
            remedy="choose a short name of lower-case letters, digits, '.', '+' and '-'",
        )
    match: dict[str, Any] = {"vendor_id": name, "gpu_name": name}  # of no machine, unless more is known
    if source == "local":
        facts = read_host_facts()
        local = detect_local(facts=facts)
        device, title = replace(local.device, target=local.target), facts.brand or name
        match |= {"vendor_id": facts.vendor_id, "brand": facts.brand} if any(map(str.isdigit, facts.brand)) else {}
    elif Path(source).is_file():
        try:
            device = Device.from_dict(parse_json(read_plain(Path(source), 1 << 20)), source)
        except (OSError, ValueError) as error:
            raise DeviceError(f"{source} cannot be read: {error}", remedy="name a sheet in JSON") from error
        title, match = device.title, match | device.match
    else:
        device = get_device(source)
        title = f"{name}, with the numbers of {device.name}"
        device = replace(device, spec=device.spec.with_values(device.spec.values(), f"assumed: as {device.name}"))
    device = replace(device, name=name, family=name, title=title, aliases=(), match=match)
    row = device.to_dict()
    family = {key: row.pop(key) for key in ("format", "family", "kind", "vendor", "isa")} | {"devices": [row]}
    write_files(own_folder(), {f"{name}.json": json.dumps(family, indent=2).encode()})
    return get_device(name)


def localised(base: Device, exact: bool, mcpu: str, target: dict[str, Any], facts: HostFacts) -> Device:
    """`base` with this machine's target and what was measured here; renamed where `base` only stands in."""
    simd = next((float(width) for flag, width in SIMD_BYTES if flag in facts.flags), None)
    measured = {name: getattr(facts, name) for name in ("cores", "threads", "l1_kib", "l2_kib", "l3_mib")}
    measured["simd_bytes"] = simd
    known = {name: value for name, value in measured.items() if value is not None}
    spec = base.spec.with_values(known, "measured: this machine")
    if exact:
        note = f"{base.notes} Measured on this machine: {', '.join(known)}.".strip()
        return replace(base, target=target, spec=spec, notes=note)
    if base.family.startswith("generic-"):
        return replace(base, target=target, spec=spec, microarchitecture=mcpu or "unknown")
    return stand_in(base, facts.brand, known, "measured: this machine", microarchitecture=mcpu, target=target)


def stand_in(near: Device, title: str, known: dict[str, Any], source: str, **more: Any) -> Device:
    """Return the nearest device in place of one without a spec sheet, with the numbers that are `known` put in."""
    rest = {name: value for name, value in near.spec.values().items() if value is not None}
    spec = near.spec.with_values(rest, f"stands in: {near.name}").with_values(known, source)
    notes = f"No spec sheet: the numbers that {source.partition(': ')[2]} does not tell are those of {near.name}."
    name = f"{near.family}-other"
    return replace(near, name=name, title=title, aliases=(), match={}, spec=spec, notes=notes, **more)


def generic(facts: HostFacts) -> Device:
    """Make a device of which nothing is known but what the facts say."""
    unknown = SourcedNumber(None, "unknown: no spec sheet for this CPU")
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
        spec=SpecSheet(dict.fromkeys(SCALES["cpu"], unknown)),
    )


def _matches(match: Mapping[str, Any], facts: HostFacts) -> bool:
    """Return True where every mark of a device holds; facts without a CPUID model match no range."""
    low, high = match.get("model_range", (None, None))
    return (
        match["vendor_id"] == facts.vendor_id
        and match.get("cpu_family", facts.cpu_family) == facts.cpu_family
        and (low is None or (facts.model is not None and low <= facts.model <= high))
        and match.get("arm_part", facts.arm_part) == facts.arm_part
        and match.get("brand", "").lower() in facts.brand.lower()
        and match.get("flag", "") in {"", *facts.flags}
        and match.get("sys_vendor", "").lower() in facts.sys_vendor.lower()
    )
