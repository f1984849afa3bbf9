"""Facts of an RPC device: its target as its servers report it, and the spec sheet of such a CPU."""

from __future__ import annotations

import platform
import shutil
from dataclasses import replace
from typing import Any

from ...zoo.devices import Device, list_devices
from .detect import LocalDevice, generic
from .errors import DeviceError
from .host_facts import HostFacts
from .rpc_address import RpcAddress
from .rpc_jobs import ServerFacts

_ISA = {"x86_64": "x86-64", "aarch64": "aarch64"}


def describe_remote(
    address: RpcAddress, facts: ServerFacts, threads: int | None, target: dict[str, Any] | None = None
) -> LocalDevice:
    """An RPC device in the form that this machine has, so that all that follows treats both alike.

    Its name and CPU model hold the key, so that its measurements never mix with those of this machine.

    Args:
        facts: what a server says of itself.
        threads: threads of a program; None for as many as the servers use, 1 where they do not say.
        target: of the servers, as the user gave it; None for what they say. Its num-cores become `threads`.

    Raises:
        DeviceError: no target was given and the servers know none, what was given is another architecture's, or
            the servers use fewer threads.
    """
    threads = threads or facts.threads or 1
    if facts.threads is not None and facts.threads < threads:
        raise DeviceError(
            f"the servers of {address} use {facts.threads} threads at most, not {threads}",
            remedy=f"ask for so many, or start them with TVM_NUM_THREADS={threads} in the environment",
            address=str(address),
        )
    chosen = (target or _target_of(address, facts)) | {"num-cores": threads}
    architecture = architecture_of(chosen)
    if facts.architecture is not None and architecture != facts.architecture:
        raise DeviceError(
            f"the target is for {architecture}, and the servers of {address} are {facts.architecture}",
            remedy="give the right --target, or another key",
            address=str(address),
        )
    mcpu = str(chosen.get("mcpu", facts.mcpu or "generic"))
    base, reasons = _base(mcpu, _ISA.get(architecture, architecture))
    device = replace(
        base,
        name=f"rpc-{address.key}",
        title=f"servers {address.key!r} behind RPC, {mcpu}",
        aliases=(),
        target=chosen,
        match={},
        notes=f"Measured through RPC; the numbers are those of {base.name}, not read on the servers.",
    )
    return LocalDevice(
        device=device,
        family=device.family,
        cpu_model=f"{mcpu} behind rpc key {address.key}",
        isa=(),
        cores=threads,
        mcpu=mcpu,
        target=chosen,
        exact=False,
        reasons=(f"servers of {address}: mcpu {facts.mcpu}, triple {facts.triple}", *reasons),
    )


def _target_of(address: RpcAddress, facts: ServerFacts) -> dict[str, Any]:
    if facts.mcpu is None or facts.architecture is None:
        raise DeviceError(
            f"the servers of {address} do not say what CPU they have: their TVM has no LLVM",
            remedy='give it, e.g. --target \'{"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}\'',
            address=str(address),
        )
    target: dict[str, Any] = {"kind": "llvm", "mcpu": facts.mcpu}
    if facts.architecture != platform.machine():
        target["mtriple"] = f"{facts.architecture}-linux-gnu"
    return target


def _base(mcpu: str, isa: str) -> tuple[Device, tuple[str, ...]]:
    """The spec sheet of the first device with this CPU; of several, the numbers differ in cores and caches only."""
    known = [d for d in list_devices("cpu") if d.isa == isa and d.target.get("mcpu") == mcpu]
    if known:
        return known[0], (f"spec sheet: {known[0].name}, whose target has mcpu {mcpu} too",)
    return generic(HostFacts(arch=isa)), (f"no spec sheet for mcpu {mcpu}",)


def architecture_of(target: dict[str, Any]) -> str:
    """E.g. `aarch64`: by the target's triple, this machine's where it has none."""
    triple = target.get("mtriple")
    return str(triple).partition("-")[0] if triple else platform.machine()


def find_linker(target: dict[str, Any], linker: str | None) -> str | None:
    """Return the linker of programs for the target, or None for this machine's own tools.

    Args:
        linker: the user's choice, a program's name or path.

    Raises:
        DeviceError: another architecture's programs, and nothing that links them.
    """
    architecture = architecture_of(target)
    if linker is None and architecture == platform.machine():
        return None
    triple = f"{architecture}-linux-gnu"
    names = [linker] if linker else [f"{triple}-gcc", f"{triple}-g++", "ld.lld"]
    compiler = next((path for name in names if (path := shutil.which(name))), None)
    if compiler is None:
        raise DeviceError(
            f"nothing here links programs for {architecture}: no {', '.join(names)}",
            remedy=f"install a cross compiler (Debian: apt-get install gcc-{triple.replace('_', '-')}), "
            "or name one with --linker",
            architecture=architecture,
        )
    return compiler
