"""The device to measure on: this machine, a card of it, or servers behind an RPC tracker; its target and linker."""

from __future__ import annotations

import json
import platform
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.devices import UnknownDeviceError, get_device, list_devices
from ...zoo.errors import TchubError
from .card_state import ROCM, refuse_amd
from .cuda_card import CUDA, card_count, card_number, describe_card
from .detect import SIMD_BYTES, LocalDevice, detect_local, generic
from .errors import DeviceError
from .extensions import OTHER_TARGET, architecture_of, extensions_of, missing_extensions, plain_name
from .host_facts import HostFacts, read_host_facts
from .rpc_session import CPU, LOCAL, RpcAddress, ServerFacts, parse_device

if TYPE_CHECKING:
    from .measure import MeasureConfig, Measurer
    from .rpc import RpcMeasurer


@dataclass(frozen=True)
class ChosenDevice:
    """A device to measure on.

    Attributes:
        facts: what it is, its target included.
        address: of an RPC device.
        linker: what links its programs; None for this machine's own tools.
        asked: the target that the user gave.
        card: number of an NVIDIA card of this machine.
    """

    facts: LocalDevice
    address: RpcAddress | None = None
    linker: str | None = None
    asked: dict[str, Any] | None = None
    card: int | None = None
    away = False  # whether programs leave in bundles and networks are not run; see `BundleDevice`

    def take_back(self, store: Any, tasks: Any) -> None:
        """Put what was measured elsewhere since the last call into a `RunStore` of these tasks."""

    @property
    def options(self) -> list[str]:
        """The options that choose it again, the tracker's address left open."""
        where = (
            f"rpc://HOST:PORT/{self.address.key}" if self.address else self.name or (CPU if self.facts.gpus else LOCAL)
        )
        target = ["--target", json.dumps(self.asked)] if self.asked else []
        return ["--device", where, *target]

    @property
    def name(self) -> str | None:
        """Name of its measurements; None for this machine's CPU. The tracker's address is no part of it."""
        if self.card is not None:
            return f"{CUDA}:{self.card}"
        return f"rpc:{self.address.key}" if self.address else None

    def measurer(self, config: MeasureConfig) -> Measurer | RpcMeasurer:
        """Start the workers that measure there, a context manager."""
        if self.card is not None:
            from .cuda_measure import CudaMeasurer

            return CudaMeasurer(self.card, self.facts.target, config)
        if self.address is None:
            from .measure import Measurer

            return Measurer(self.facts.target, config)
        from .rpc import RpcConfig, RpcMeasurer

        return RpcMeasurer(self.address, self.facts.target, config, RpcConfig(linker=self.linker))


def choose_device(
    device: str = LOCAL,
    threads: int | None = None,
    *,
    target: dict[str, Any] | None = None,
    linker: str | None = None,
    kind: str | None = None,
) -> ChosenDevice:
    """Return the device of a `--device`; asks one of its servers what it is.

    Args:
        device: `cpu`, `cuda` or `cuda:1` for a card of this machine, `local` for its first card or else its CPU, or
            `rpc://host:port/key`.
        threads: of a program; None for this machine's physical cores that this process may use, or for the threads
            that the servers use by themselves. `facts.cores` has the number.
        target: TVM target as a dictionary; None for what the device says of itself. This machine's `threads` are its
            num-cores, and its spec sheet is that of what the target may use.
        kind: of `local`, `cpu` or `gpu`, where what will run there says so. Options of CPUs choose the CPU, too.

    Raises:
        DeviceError: none of these, more threads than it has, a target that it cannot run, nothing here compiles for
            it, a card with an option that is a CPU's, or AMD's (`rocm`); see `describe_card` and `refuse_amd`.
        NoServerError: no tracker, or no server that answers.
    """
    no_card: DeviceError | None = None
    if device == LOCAL and kind != "cpu" and threads is target is linker is None and card_count():
        try:
            return ChosenDevice(describe_card(0), card=0)
        except DeviceError as error:
            if kind == "gpu":
                raise
            no_card = error
    if (card := card_number(device)) is not None:
        given = {"--threads": threads, "--target": target, "--linker": linker}
        if options := ", ".join(name for name, value in given.items() if value is not None):
            raise DeviceError(f"{options} is an option of CPUs, and {device} is a card", remedy=f"leave out {options}")
        return ChosenDevice(describe_card(card), card=card)
    if (card := card_number(device, ROCM)) is not None:
        raise refuse_amd(card)
    address = parse_device(device)
    if address is None:
        local = detect_local(threads)
        if no_card is not None:
            local = replace(local, reasons=(*local.reasons, f"the CPU, and not the card: {no_card.message}"))
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


def checkpoint_kind(checkpoint: str | None) -> str | None:
    """Return the kind of device, `cpu` or `gpu`, that a checkpoint of the registry is for; None for another."""
    from ..registry import Registry, resolve
    from ..registry.listing import kind_of

    if checkpoint is None:
        return None
    registry = Registry.default()
    try:
        return kind_of(resolve(registry.entries(), checkpoint, None, registry.home.stand_ins()).entry)
    except TchubError:
        return None  # a folder, or no model: whoever opens it says what is wrong


def parse_target(text: str | None) -> dict[str, Any] | None:
    """Return a `--target`: JSON, a file of it, or the name of a device of the zoo, or of a CPU or level of LLVM's here.

    Raises:
        DeviceError: none of these.
    """
    if text is None:
        return None
    why = ""
    try:
        target_dict = json.loads(Path(text).read_text(encoding="utf-8") if Path(text).is_file() else text)
    except (ValueError, OSError):
        try:
            return dict(get_device(text).target)
        except UnknownDeviceError as error:
            target_dict, why = cpu_target(text), f": {error.message}"
    if not isinstance(target_dict, dict) or "kind" not in target_dict:
        raise DeviceError(
            f"{text!r} is no target{why}",
            remedy='give JSON such as {"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}, '
            "a file of it, the name of a device from `tchub devices`, or a CPU or level of LLVM such as x86-64-v2",
        )
    return target_dict


def describe_remote(
    address: RpcAddress, facts: ServerFacts, threads: int | None, target: dict[str, Any] | None = None
) -> LocalDevice:
    """Return an RPC device in the form that this machine has, so that all that follows treats both alike.

    Its name and CPU model hold the key, so that its measurements never mix with those of this machine.

    Args:
        threads: of a program, the target's num-cores; None for as many as the servers use, 1 where they do not say.

    Raises:
        DeviceError: the servers know no target, have another architecture than the given one, or use fewer threads.
    """
    threads = threads or facts.threads or 1
    chosen, problem, remedy = target or None, None, None
    if chosen is None and facts.mcpu is not None and facts.architecture is not None:
        triple = {} if facts.architecture == platform.machine() else {"mtriple": f"{facts.architecture}-linux-gnu"}
        chosen = {"kind": "llvm", "mcpu": facts.mcpu, **triple}
    if facts.threads is not None and facts.threads < threads:
        problem = f"use {facts.threads} threads at most, not {threads}"
        remedy = f"ask for so many, or start them with TVM_NUM_THREADS={threads} in the environment"
    elif chosen is None:
        problem = "do not say what CPU they have: their TVM has no LLVM"
        target_example = '{"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}'
        remedy = f"give it, e.g. --target '{target_example}'"
    elif facts.architecture not in (None, architecture_of(chosen)):
        problem = f"are {facts.architecture}, and the target is for {architecture_of(chosen)}"
        remedy = "give the right --target, or another key"
    if chosen is None or problem is not None:
        raise DeviceError(f"the servers of {address} {problem}", remedy=remedy)
    chosen, architecture = chosen | {"num-cores": threads}, architecture_of(chosen)
    mcpu = str(chosen.get("mcpu", facts.mcpu or "generic"))
    isa = architecture.replace("_", "-")
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
        cpu_model=f"{mcpu} behind rpc key {address.key}",
        exact=False,
        reasons=(f"servers of {address}: mcpu {facts.mcpu}, triple {facts.triple}", f"spec sheet: {base.name}"),
    )


def find_linker(target: dict[str, Any], linker: str | None) -> str | None:
    """Return what links programs for the target, `linker` where it is given; None for this machine's own tools.

    Raises a DeviceError where nothing links programs of another architecture.
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
        )
    return compiler


# A target of the user's for this machine ------------------------------------------------------------------


def with_target(local: LocalDevice, target: dict[str, Any], facts: HostFacts) -> LocalDevice:
    """Return this machine as programs for a target see it.

    Its SIMD width and its extensions are those that LLVM may use for the target; all else stays as measured, and
    num-cores is that of `local`, so that a target of another machine's cores can be named too.

    Raises:
        DeviceError: no target of LLVM's, another architecture's, or one with extensions that this CPU lacks.
    """
    chosen = {**({"mtriple": local.target["mtriple"]} if "mtriple" in local.target else {}), **target}
    chosen["num-cores"] = local.cores
    extensions = extensions_of(chosen)
    if missing := missing_extensions(chosen, facts):
        raise DeviceError(
            f"programs for {_name(chosen)} may use {', '.join(missing)}, which this CPU lacks",
            remedy=OTHER_TARGET + "; or measure on a machine that has them, with --device rpc://HOST:PORT/KEY",
        )
    kept = {plain_name(name) for name in extensions} | set(extensions.values())
    width = next((float(bytes_) for flag, bytes_ in SIMD_BYTES if flag in kept), None)
    spec = local.device.spec
    if width is not None:
        spec = spec.with_values({"simd_bytes": width}, f"the target's: {_name(chosen)}")
    why = f"target {_name(chosen)}: asked for" + (f", {8 * width:.0f}-bit vectors" if width else "")
    return replace(
        local,
        device=replace(local.device, target=chosen, spec=spec),
        isa=tuple(flag for flag in local.isa if plain_name(flag) in kept),
        reasons=(*local.reasons, why),
    )


def cpu_target(name: str) -> dict[str, Any] | None:
    """Return the target of a CPU or level that LLVM has for this architecture, e.g. `x86-64-v2`; None for others."""
    from tvm.target import codegen

    if not codegen.llvm_version_major(allow_none=True):
        return None
    known = codegen.llvm_is_valid_cpu(name, str(codegen.llvm_get_system_triple()))
    return {"kind": "llvm", "mcpu": name} if known else None


def _name(target: dict[str, Any]) -> str:
    return str(target.get("mcpu", "generic"))
