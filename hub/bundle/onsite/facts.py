"""What is known of the machine that measures."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def machine_facts() -> dict[str, Any]:
    """The CPU, its cores, the system and the driver."""
    return {
        "cpu_model": _cpu_model(),
        "arch": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "nvidia_driver": _first_line("/proc/driver/nvidia/version"),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    named = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    return named.get("model name") or named.get("CPU part") or "unknown"


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return None


def mapped_libraries(prefix: str) -> list[str]:
    """Names of the shared libraries in this process that start so: those that a program may call into."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    names = {os.path.basename(line.split()[-1]) for line in lines if "/" in line}
    return sorted(name for name in names if name.startswith(prefix))
