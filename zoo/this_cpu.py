"""What py-cpuinfo says of this machine's CPU, asked once."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def cpu_info() -> dict[str, Any]:
    """py-cpuinfo's answer; it takes a second, and the CPU does not change under a process."""
    import cpuinfo

    try:
        return cpuinfo.get_cpu_info() or {}
    except Exception as error:  # py-cpuinfo raises bare Exception on systems it does not know
        return {"brand_raw": f"unknown ({error})"}
