"""Cards as the system tells of them: of NVIDIA's names, clocks, what holds these down, power and other processes.

NVML's Python module (`nvidia-ml-py`) is optional. Without it the kernel's driver tells the names, and what a card does
is told by a reference kernel alone (`cuda_measure`). tchub measures on none of AMD's cards: here is which this machine
has, and what the TVM that is installed can do for them.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from ctypes import CDLL
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...zoo.devices import list_devices
from .errors import DeviceError

LIBRARY = "libnvidia-ml.so.1"
# Programs are small; what a card needs besides is the driver's own and the flushing of the cache.
LEAST_BYTES = 1 << 30
PROC_GPUS = Path("/proc/driver/nvidia/gpus")
# What NVML calls clock event reasons, but for idleness and clocks that somebody has set.
_SLOWED = {
    "SwPowerCap": "its power limit", "HwSlowdown": "its hardware's protection", "SwThermalSlowdown": "its heat",
    "HwThermalSlowdown": "its heat (hardware)", "HwPowerBrakeSlowdown": "its power supply",
}  # fmt: skip


@dataclass(frozen=True)
class CardState:
    """A card at one moment; None for what it does not tell.

    Attributes:
        slowed_by: what keeps its clock down, in words.
        processes: that compute on it, this one included.
    """

    clock_mhz: int | None = None
    highest_mhz: int | None = None
    power_w: float | None = None
    limit_w: float | None = None
    celsius: int | None = None
    processes: int | None = None
    free_bytes: int | None = None
    slowed_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [
            ("{} of {} MHz", self.clock_mhz, self.highest_mhz),
            ("{:.0f} of {:.0f} W", self.power_w, self.limit_w),
            ("{} °C", self.celsius),
            ("{:.1f} GiB free", self.free_bytes and self.free_bytes / 2**30),
            ("slowed by {}", " and ".join(self.slowed_by) or None),
        ]
        return ", ".join(text.format(*values) for text, *values in parts if None not in values)


@lru_cache(maxsize=1)
def _nvml() -> Any | None:
    """Return NVML, started; None where it is missing."""
    try:
        CDLL(LIBRARY)  # most machines have none, and importing the module takes longer
        import pynvml  # pyright: ignore[reportMissingImports]
    except (OSError, ImportError):
        return None
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return pynvml
    return None


def card_names(root: Path = PROC_GPUS) -> tuple[str, ...]:
    """Return the names of the NVIDIA cards of this machine, whether or not CUDA's driver shows them."""
    if (nvml := _nvml()) is not None:
        with suppress(nvml.NVMLError):
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            return tuple(str(nvml.nvmlDeviceGetName(handle)) for handle in handles)
    names = []
    for file in sorted(root.glob("*/information")):
        with suppress(OSError):  # containers hide some
            match = re.search(r"^Model:\s*(.*\S)", file.read_text(errors="replace"), re.MULTILINE)
            names += [match[1]] if match else []
    return tuple(names)


def card_state(bus_id: str) -> CardState | None:
    """Return the state of the card at a PCI bus address, e.g. `0000:65:00.0`; None without NVML."""
    if (nvml := _nvml()) is None:
        return None

    def ask(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except nvml.NVMLError:  # not every card tells everything
            return None

    if (card := ask(nvml.nvmlDeviceGetHandleByPciBusId, bus_id)) is None:
        return None
    power, limit = ask(nvml.nvmlDeviceGetPowerUsage, card), ask(nvml.nvmlDeviceGetEnforcedPowerLimit, card)
    reasons = ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, card) or 0
    processes = ask(nvml.nvmlDeviceGetComputeRunningProcesses, card)
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, card)
    return CardState(
        clock_mhz=ask(nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_SM),
        highest_mhz=ask(nvml.nvmlDeviceGetMaxClockInfo, card, nvml.NVML_CLOCK_SM),
        power_w=None if power is None else power / 1000,
        limit_w=None if limit is None else limit / 1000,
        celsius=ask(nvml.nvmlDeviceGetTemperature, card, nvml.NVML_TEMPERATURE_GPU),
        processes=None if processes is None else len(processes),
        free_bytes=None if memory is None else int(memory.free),
        slowed_by=tuple(
            text for name, text in _SLOWED.items() if reasons & getattr(nvml, f"nvmlClocksEventReason{name}")
        ),
    )


# AMD's cards

ROCM = "rocm"
KFD = Path("/sys/class/kfd/kfd/topology/nodes")
AMD_REMEDY = (
    "measure on an NVIDIA card or a CPU (--device cuda or cpu); programs that were measured on AMD's cards elsewhere "
    "can be imported (`tchub corpus import`), trained on, and adapted to (`tchub adapt --corpus`)"
)


def amd_cards(root: Path = KFD) -> list[str]:
    """Return the architectures of AMD's cards, e.g. `gfx906`, in the order of the kernel's driver."""
    texts = (file.read_text(encoding="utf-8") for file in sorted(root.glob("*/properties")))
    versions = (re.search(r"^gfx_target_version (\d+)", text, re.MULTILINE) for text in texts)
    # 90006 is gfx906, 110001 gfx1101, 90010 gfx90a; a CPU has 0.
    numbers = (int(match[1]) for match in versions if match and match[1] != "0")
    return [f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}" for number in numbers]


def describe_amd(arch: str, *, ask_tvm: bool = True) -> str:
    """Return in a sentence what a card of an architecture is, and what TVM, where it may be imported, lacks for it."""
    sheets = [device.name for device in list_devices("gpu") if device.target.get("mcpu") == arch]
    known = f"{arch} of AMD ({', '.join(sheets) or 'no spec sheet'})"
    if not ask_tvm:
        return f"{known}: tchub measures on no card of AMD"
    import tvm
    from tvm.support.rocm import find_lld
    from tvm.target import codegen

    release = codegen.llvm_version_major(allow_none=True)
    parts = {
        "code for AMD's cards": tvm.get_global_func("target.build.rocm", allow_missing=True),
        f"{arch} in its LLVM": release and codegen.llvm_is_valid_cpu(arch, "amdgcn-amd-amdhsa"),
        "a linker (ld.lld)": find_lld(required=False),
        "a runtime for AMD's cards": tvm.get_global_func("device_api.rocm", allow_missing=True),
    }
    has, lacks = (", ".join(name for name, part in parts.items() if bool(part) is there) for there in (True, False))
    return f"{known}: TVM has {has or 'nothing for it'} and lacks {lacks or 'nothing'}; tchub measures on none"


def refuse_amd(number: int, root: Path = KFD) -> DeviceError:
    """Return the error of `--device rocm:NUMBER`."""
    cards = amd_cards(root)
    if number >= len(cards):
        problem = f"the kernel's driver shows {len(cards)} cards of AMD, and number {number} was asked for (from 0)"
        return DeviceError(problem, remedy=f"see {root} and `tchub doctor`; or {AMD_REMEDY}")
    return DeviceError(f"{ROCM}:{number} cannot be measured on: {describe_amd(cards[number])}", remedy=AMD_REMEDY)
