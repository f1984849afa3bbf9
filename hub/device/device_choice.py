"""The device to measure on: this machine, a card of it, or servers behind an RPC tracker; its target and linker."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.devices import UnknownDeviceError, get_device, list_devices
from .cuda_card import CUDA, card_number, describe_card
from .detect import LocalDevice, detect_local, generic
from .errors import DeviceError
from .host_facts import HostFacts, read_host_facts
from .local_target import architecture_of, cpu_target, with_target
from .rpc_jobs import ServerFacts
from .rpc_tracker import LOCAL, RpcAddress, parse_device

if TYPE_CHECKING:
    from ...zoo.devices import Device
    from .measure import MeasureConfig, Measurer
    from .rpc import RpcMeasurer

_ISA = {"x86_64": "x86-64", "aarch64": "aarch64"}


@dataclass(frozen=True)
class ChosenDevice:
    """A device to measure on.

    Attributes:
        facts: what it is, its target included.
        address: of an RPC device; None for this machine.
        linker: what links its programs; None for this machine's own tools.
        asked: the target that the user gave, if any.
        card: number of an NVIDIA card of this machine; None for its CPU and for RPC.
    """

    facts: LocalDevice
    address: RpcAddress | None = None
    linker: str | None = None
    asked: dict[str, Any] | None = None
    card: int | None = None

    @property
    def options(self) -> list[str]:
        """The options that choose it again, the tracker's address left open."""
        where = f"rpc://HOST:PORT/{self.address.key}" if self.address else self.name or LOCAL
        target = ["--target", json.dumps(self.asked)] if self.asked else []
        return ["--device", where, *target]

    @property
    def name(self) -> str | None:
        """Name of its measurements; None for this machine's CPU. The tracker's address is no part of it."""
        if self.card is not None:
            return f"{CUDA}:{self.card}"
        return f"rpc:{self.address.key}" if self.address else None

    @property
    def sheet(self) -> Device | None:
        """Spec sheet that a model reads instead of its own: this machine as another target sees it; else None."""
        return self.facts.device if self.asked and self.address is None else None

    def measurer(self, config: MeasureConfig, note: Callable[[str], None] = lambda _: None) -> Measurer | RpcMeasurer:
        """Start the workers that measure there, a context manager; `note` is called once when this machine is busy."""
        if self.card is not None:
            from .cuda_measure import CudaMeasurer

            return CudaMeasurer(self.card, self.facts.target, config, note)
        if self.address is None:
            from .measure import Measurer

            return Measurer(self.facts.target, config, note)
        from .rpc import RpcConfig, RpcMeasurer

        return RpcMeasurer(self.address, self.facts.target, config, RpcConfig(linker=self.linker))


def choose_device(
    device: str = LOCAL, threads: int | None = None, *, target: dict[str, Any] | None = None, linker: str | None = None
) -> ChosenDevice:
    """Return the device of a `--device`; asks one of its servers what it is.

    Args:
        device: `local`, `cuda` or `cuda:1` for a card of this machine, or `rpc://host:port/key`.
        threads: threads of a program; None for this machine's physical cores that this process may use, or for the
            threads that the servers use by themselves. `facts.cores` has the number.
        target: TVM target as a dictionary; None for what the device says of itself. This machine's `threads` are
            its num-cores, and its spec sheet is that of what the target may use.
        linker: for programs of another architecture.

    Raises:
        DeviceError: none of these, more threads than it has, a target that it cannot run, nothing here compiles for
            it, or a card with an option that is a CPU's; see `describe_card`.
        NoServerError: no tracker, or no server that answers.
    """
    if (card := card_number(device)) is not None:
        given = {"--threads": threads, "--target": target, "--linker": linker}
        if options := ", ".join(name for name, value in given.items() if value is not None):
            raise DeviceError(f"{options} is an option of CPUs, and {device} is a card", remedy=f"leave out {options}")
        return ChosenDevice(describe_card(card), card=card)
    address = parse_device(device)
    if address is None:
        local = detect_local(threads)
        if target is None:
            return ChosenDevice(local)
        return ChosenDevice(with_target(local, target, read_host_facts()), asked=target)
    from .rpc import RpcConfig, ask_server

    facts = describe_remote(address, ask_server(address, RpcConfig(threads=threads)), threads, target)
    return ChosenDevice(facts, address, find_linker(facts.target, linker), target)


def fitting_checkpoint(device: ChosenDevice) -> str | None:
    """Return the checkpoint that fits a card or RPC device best; None for this CPU: the registry detects it."""
    if device.name is None:
        return None
    from ..registry import Registry

    return Registry.default().resolve(None, device.facts.device).entry.id


def parse_target(text: str | None) -> dict[str, Any] | None:
    """Return a `--target`: JSON, a file of it, the name of a device of the zoo, or of a CPU or level of LLVM's here.

    Raises:
        DeviceError: none of these.
    """
    if text is None:
        return None
    try:
        target_dict = json.loads(Path(text).read_text(encoding="utf-8") if Path(text).is_file() else text)
    except (ValueError, OSError):
        try:
            return dict(get_device(text).target)
        except UnknownDeviceError:
            target_dict = cpu_target(text)
    if not isinstance(target_dict, dict) or "kind" not in target_dict:
        raise DeviceError(
            f"{text!r} is no target",
            remedy='give JSON such as {"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}, '
            "a file of it, the name of a device from `tchub devices`, or a CPU or level of LLVM such as x86-64-v2",
            address="",
        )
    return target_dict


def describe_remote(
    address: RpcAddress, facts: ServerFacts, threads: int | None, target: dict[str, Any] | None = None
) -> LocalDevice:
    """Return an RPC device in the form that this machine has, so that all that follows treats both alike.

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
    isa = _ISA.get(architecture, architecture)
    # Of several devices with this CPU the numbers differ in cores and caches only.
    known = (d for d in list_devices("cpu") if d.isa == isa and d.target.get("mcpu") == mcpu)
    base = next(known, None) or generic(HostFacts(arch=isa))
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
        reasons=(f"servers of {address}: mcpu {facts.mcpu}, triple {facts.triple}", f"spec sheet: {base.name}"),
    )


def _target_of(address: RpcAddress, facts: ServerFacts) -> dict[str, Any]:
    if facts.mcpu is None or facts.architecture is None:
        raise DeviceError(
            f"the servers of {address} do not say what CPU they have: their TVM has no LLVM",
            remedy='give it, e.g. --target \'{"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}\'',
            address=str(address),
        )
    triple = {} if facts.architecture == platform.machine() else {"mtriple": f"{facts.architecture}-linux-gnu"}
    return {"kind": "llvm", "mcpu": facts.mcpu, **triple}


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
