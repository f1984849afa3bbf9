"""This machine: the name of its CPU, and the threads that PyTorch uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def cpu_info() -> dict[str, Any]:
    """Return py-cpuinfo's facts; it takes a second, and the CPU does not change under a process."""
    import cpuinfo

    try:
        return cpuinfo.get_cpu_info() or {}
    except Exception as error:  # py-cpuinfo raises bare Exception on systems it does not know
        return {"brand_raw": f"unknown ({error})"}


def machine(torch_device: str = "cpu") -> str:
    """Return the GPU's name, or the CPU's with the number of threads that PyTorch uses, e.g. `AMD EPYC, 1 thread`."""
    import torch

    if torch.device(torch_device).type == "cuda":
        return torch.cuda.get_device_name(torch_device)
    threads = torch.get_num_threads()
    return f"{cpu_info().get('brand_raw', 'an unknown CPU')}, {threads} thread{'s' if threads > 1 else ''}"


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread inside: on small matrices more cost time, and other cores may be measuring."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
