"""This machine: the name of its CPU, and the threads that PyTorch uses."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any


@cache
def cpu_info() -> dict[str, Any]:
    """Return the CPU's facts by py-cpuinfo's names; it is asked, for a second, where Linux does not tell them."""
    if facts := x86_facts(first_processor()):
        return facts
    import cpuinfo

    try:
        return cpuinfo.get_cpu_info() or {}
    except Exception as error:  # py-cpuinfo raises bare Exception on systems it does not know
        return {"brand_raw": f"unknown ({error})"}


def first_processor(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return what Linux says of the first processor, by Linux's names; a machine may have several kinds."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:  # another system, or a container that hides it
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}


def x86_facts(processor: Mapping[str, str]) -> dict[str, Any] | None:
    """Return Linux's facts of a processor by py-cpuinfo's names; None of one that is no x86."""
    try:
        numbers = {"family": int(processor["cpu family"]), "model": int(processor["model"])}
        names = {"vendor_id_raw": processor["vendor_id"], "brand_raw": processor["model name"]}
        return {**numbers, **names, "flags": processor["flags"].split()}
    except (KeyError, ValueError):
        return None


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
