"""Which device this machine is: its family, its TVM target, and its spec sheet with what is measured here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...zoo.devices import Device
from ...zoo.errors import TchubError
from .host_facts import HostFacts, read_host_facts
from .recognise import generic, identify, localised, match_gpu

_FLAGS_OF_INTEREST = (
    *("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx_vnni", "amx_tile", "asimd", "asimddp", "fphp", "sve", "i8mm", "bf16"),
)
# The x86-64 levels of the psABI, which LLVM takes as CPU names: used where LLVM cannot be asked.
_X86_LEVELS = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx2", "fma", "bmi1", "bmi2", "movbe", "f16c"}),
    ("x86-64-v2", {"sse4_2", "ssse3", "popcnt", "cx16"}),
)


class DetectionError(TchubError):
    """The number of cores asked for cannot be had. Fields: cores, usable."""


@dataclass(frozen=True)
class LocalGpu:
    """A GPU of this machine; `device` is its name in `zoo.devices`, None where it has no spec sheet."""

    name: str
    memory_gib: float
    driver: str
    device: str | None


@dataclass(frozen=True)
class LocalDevice:
    """This machine.

    Attributes:
        device: the spec sheet of the device that it is (or is nearest to), with cores, threads, caches and
            SIMD width as measured here.
        family: the device's family.
        cpu_model: the CPU's own brand string.
        isa: instruction-set extensions that matter for generated code.
        cores: cores to compile for and measure on, the target's num-cores.
        mcpu: LLVM's name of the CPU.
        target: the TVM target as a dict.
        exact: True where the machine matches a known device's own marks, False where the nearest stands in.
        reasons: how each of the above was found, one line each.
        gpus: NVIDIA GPUs found beside the CPU.
    """

    device: Device
    family: str
    cpu_model: str
    isa: tuple[str, ...]
    cores: int
    mcpu: str
    target: dict[str, Any]
    exact: bool
    reasons: tuple[str, ...]
    gpus: tuple[LocalGpu, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        plain = {k: getattr(self, k) for k in ("family", "cpu_model", "cores", "mcpu", "target", "exact")}
        return {
            "device": self.device.to_dict(),
            **plain,
            "isa": list(self.isa),
            "reasons": list(self.reasons),
            "gpus": [vars(gpu) for gpu in self.gpus],
        }


def detect_local(
    cores: int | None = None,
    *,
    facts: HostFacts | None = None,
    host_cpu: str | None = None,
    ask_llvm: bool = True,
) -> LocalDevice:
    """Detect this machine's CPU, and list its GPUs. An unknown machine gets a generic device.

    Args:
        cores: cores to compile for; by default all physical ones that this process may use.
        facts: facts to decide from, instead of this machine's.
        host_cpu: LLVM's name of the CPU, instead of asking TVM for it (which imports TVM).
        ask_llvm: whether TVM may be imported to ask; without, a known device's target or the flags decide.

    Raises:
        DetectionError: `cores` is less than 1 or more than this process may use.
    """
    facts = facts or read_host_facts()
    why_cores = "all physical cores that this process may use" if cores is None else "asked for"
    cores = _checked_cores(cores, facts)
    base, exact, reasons = identify(facts)
    if host_cpu is None and ask_llvm:
        host_cpu = llvm_host_cpu()
    mcpu, why = _mcpu(facts, base if exact else None, host_cpu)
    target: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu, "num-cores": cores}
    if facts.arch == "aarch64":
        target["mtriple"] = "aarch64-linux-gnu"
    device = localised(base or generic(facts), exact, mcpu, target, facts)
    reasons += [why, f"num-cores {cores}: {why_cores}"]
    return LocalDevice(
        device=device,
        family=device.family,
        cpu_model=facts.brand or "unknown",
        isa=tuple(flag for flag in _FLAGS_OF_INTEREST if flag in facts.flags),
        cores=cores,
        mcpu=mcpu,
        target=target,
        exact=exact,
        reasons=tuple(reasons),
        gpus=tuple(LocalGpu(g.name, g.memory_gib, g.driver, match_gpu(g.name)) for g in facts.gpus),
    )


def llvm_host_cpu() -> str | None:
    """LLVM's name of this CPU, from TVM; None where TVM or its LLVM is missing."""
    try:
        from tvm.target import codegen
    except (ImportError, OSError):
        return None
    return str(codegen.llvm_get_system_cpu()) if codegen.llvm_version_major(allow_none=True) else None


def _checked_cores(cores: int | None, facts: HostFacts) -> int:
    if cores is None:
        return facts.usable_cores or facts.usable
    if not 1 <= cores <= facts.usable:
        raise DetectionError(
            f"cannot use {cores} cores: this process may run on {facts.usable}",
            remedy=f"ask for 1 to {facts.usable} cores, or widen the process's CPU affinity",
            cores=cores,
            usable=facts.usable,
        )
    return cores


def _mcpu(facts: HostFacts, known: Device | None, host_cpu: str | None) -> tuple[str, str]:
    if host_cpu:
        return host_cpu, f"mcpu {host_cpu}: LLVM's name of this CPU"
    if known is not None:
        return known.target["mcpu"], f"mcpu {known.target['mcpu']}: the target of {known.name}"
    if facts.arch == "x86-64":
        level = next((name for name, needs in _X86_LEVELS if needs <= facts.flags), "x86-64")
        return level, f"mcpu {level}: by the CPU's flags (LLVM could not be asked)"
    return "generic", "mcpu generic: LLVM could not be asked"
