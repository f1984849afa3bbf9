"""Facts that the system reports about this machine: CPUID, caches, usable cores, GPUs. Nothing is guessed here."""

import ctypes
import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...zoo.machine import cpu_info, first_processor
from .card_state import card_names
from .onsite.files import system_text

SYS_CPU = Path("/sys/devices/system/cpu")
SYS_CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
SYS_VENDOR = Path("/sys/devices/virtual/dmi/id/sys_vendor")
# Linux's arch_prctl on x86-64, its request for a component of a process's state, and that of the tile registers' data.
TILE_PERMISSION = 158, 0x1023, 18
_KIB = {"": 1 / 1024, "K": 1, "M": 1024, "G": 1024**2}


@dataclass(frozen=True)
class HostFacts:
    """Facts read from this machine; None or empty where it does not say.

    Attributes:
        arch: "x86-64" or "aarch64".
        vendor_id: CPUID vendor ("AuthenticAMD"), or "ARM" for cores designed by Arm.
        brand: the brand string, which a virtual machine may shorten ("AMD EPYC").
        arm_part: Arm's part number, e.g. "0xd0c".
        sys_vendor: the machine's maker, e.g. "Amazon EC2".
        cores, threads: physical cores and logical CPUs that the machine has.
        usable, usable_cores: those that this process may use.
        l1_kib, l2_kib: per core; l3_mib: all that the machine sees.
        gpus: names of NVIDIA's.
    """

    arch: str
    vendor_id: str = ""
    brand: str = ""
    cpu_family: int | None = None
    model: int | None = None
    arm_part: str | None = None
    sys_vendor: str = ""
    flags: frozenset[str] = frozenset()
    cores: int | None = None
    threads: int | None = None
    usable: int = 1
    usable_cores: int | None = None
    l1_kib: float | None = None
    l2_kib: float | None = None
    l3_mib: float | None = None
    gpus: tuple[str, ...] = ()


def read_host_facts() -> HostFacts:
    """Read this machine's facts. Never fails on a machine that hides them: fields stay None or empty."""
    import psutil

    info, processor = cpu_info(), first_processor()
    threads = os.cpu_count()
    physical = psutil.cpu_count(logical=False) or threads
    smt = max(1, round((threads or 1) / (physical or 1)))
    return HostFacts(
        arch=platform.machine().replace("_", "-"),
        vendor_id=str(info.get("vendor_id_raw") or ("ARM" if processor.get("CPU implementer") == "0x41" else "")),
        brand=str(info.get("brand_raw") or ""),
        cpu_family=info.get("family"),
        model=info.get("model"),
        arm_part=processor.get("CPU part"),
        sys_vendor=system_text(SYS_VENDOR),
        flags=_permitted(info.get("flags") or ()),
        cores=physical,
        threads=threads,
        usable=usable_cpus(),
        usable_cores=usable_cores(),
        gpus=card_names(),
        **read_caches(SYS_CPU, smt),
    )


def _permitted(flags: Iterable[str]) -> frozenset[str]:
    """Return a CPU's flags, without those of tile registers where the system keeps this process from them.

    Linux has them listed since before it could save them, and may refuse, e.g. in some containers.
    """
    tiles = {flag for flag in flags if flag.startswith("amx")}
    allowed = tiles and platform.system() == "Linux" and ctypes.CDLL(None).syscall(*TILE_PERMISSION) == 0
    return frozenset(flags) - (set() if allowed else tiles)


def cores() -> list[int]:
    """Return the logical CPUs that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def usable_cpus() -> int:
    """Return how many logical CPUs this process may run on."""
    return len(cores())


def usable_cores() -> int:
    """Return the physical cores that this process's affinity allows and its cgroup's quota pays for."""
    usable, quota = len(physical_cores(cores())), cpu_quota()
    return usable if quota is None else max(1, min(usable, int(quota)))


def physical_cores(cpus: Sequence[int], root: Path = SYS_CPU) -> list[tuple[int, ...]]:
    """Return logical CPUs by the physical core that they share; each is a core where the system does not tell."""
    physical: dict[str, list[int]] = {}
    for cpu in cpus:
        siblings = system_text(root / f"cpu{cpu}" / "topology" / "thread_siblings_list")
        physical.setdefault(siblings or f"cpu {cpu}", []).append(cpu)
    return [tuple(core) for core in physical.values()]


def cpu_quota(root: Path = SYS_CGROUP, own: Path = OWN_CGROUPS) -> float | None:
    """Return the CPUs that this process's cgroup, or one around it, may use at a time (`--cpus`); None: no limit."""
    quotas = []
    for line in system_text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        inner = root / path.lstrip("/")
        for folder in () if controllers else (inner, *inner.parents):  # a controller's name means version 1
            quota, _, period = system_text(folder / "cpu.max").partition(" ")  # microseconds, or "max"
            if quota.isdigit():
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def read_caches(root: Path, threads_per_core: int) -> dict[str, float | None]:
    """Return cache sizes: l1_kib and l2_kib per core, l3_mib over all CPUs; None where unknown.

    A cache that more logical CPUs share than a core has is divided among their cores.
    """
    caches: dict[tuple[int, str], tuple[float, int]] = {}
    for index in root.glob("cpu[0-9]*/cache/index*"):
        level, kind = system_text(index / "level"), system_text(index / "type")
        size, shared = (
            re.fullmatch(r"(\d+)([KMG]?)", system_text(index / "size")),
            system_text(index / "shared_cpu_list"),
        )
        if level.isdigit() and kind in ("Data", "Unified") and size is not None:
            caches[int(level), shared] = (int(size[1]) * _KIB[size[2]], _count_cpus(shared))

    def per_core(level: int) -> float | None:
        sizes = [s / max(1, n // threads_per_core) for (at, _), (s, n) in caches.items() if at == level]
        return max(sizes, default=None)

    l3 = [size for (level, _), (size, _) in caches.items() if level == 3]
    return {"l1_kib": per_core(1), "l2_kib": per_core(2), "l3_mib": sum(l3) / 1024 if l3 else None}


def _count_cpus(ranges: str) -> int:
    """Count the CPUs in a list such as "0-3,8"."""
    count = 0
    for part in filter(None, ranges.split(",")):
        low, _, high = part.partition("-")
        count += int(high or low) - int(low) + 1
    return max(1, count)
