"""NVIDIA's cards as NVML tells of them: names, clocks, what holds these down, power, temperature, other processes.

NVML's Python module (`nvidia-ml-py`) is optional. Without it the kernel's driver tells the names, and what a card does
is told by a reference kernel alone (`cuda_measure`).
"""

import re
from collections.abc import Callable
from contextlib import suppress
from ctypes import CDLL
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

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
