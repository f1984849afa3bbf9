"""The device to measure on: on this machine, or on the servers behind an RPC tracker."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.devices import UnknownDeviceError, get_device
from .errors import DeviceError
from .rpc_address import LOCAL, RpcAddress, parse_device

if TYPE_CHECKING:
    from ...zoo.devices import Device
    from .detect import LocalDevice
    from .measure import MeasureConfig, Measurer
    from .rpc import RpcMeasurer


@dataclass(frozen=True)
class ChosenDevice:
    """A device to measure on.

    Attributes:
        facts: what it is, its target included.
        address: of an RPC device; None for this machine.
        linker: what links its programs; None for this machine's own tools.
        asked: the target that the user gave, if any.
    """

    facts: LocalDevice
    address: RpcAddress | None = None
    linker: str | None = None
    asked: dict[str, Any] | None = None

    @property
    def options(self) -> list[str]:
        """The options that choose it again, the tracker's address left open."""
        where = f"rpc://HOST:PORT/{self.address.key}" if self.address else LOCAL
        target = ["--target", json.dumps(self.asked)] if self.asked else []
        return ["--device", where, *target]

    @property
    def name(self) -> str | None:
        """Name of its measurements; None for this machine. The tracker's address is no part of it."""
        return f"rpc:{self.address.key}" if self.address else None

    @property
    def sheet(self) -> Device | None:
        """Spec sheet that a model reads instead of its own: this machine as another target sees it; else None."""
        return self.facts.device if self.asked and self.address is None else None

    def measurer(self, config: MeasureConfig, note: Callable[[str], None] = lambda _: None) -> Measurer | RpcMeasurer:
        """Starts what measures there, a context manager; `note` is told once when this machine is busy."""
        if self.address is None:
            from .measure import Measurer

            return Measurer(self.facts.target, config, note)
        from .rpc import RpcMeasurer
        from .rpc_fleet import RpcConfig

        return RpcMeasurer(self.address, self.facts.target, config, RpcConfig(linker=self.linker))


def choose_device(
    device: str = LOCAL, threads: int | None = None, *, target: dict[str, Any] | None = None, linker: str | None = None
) -> ChosenDevice:
    """The device of a `--device`; asks one of its servers what it is.

    Args:
        device: `local`, or `rpc://host:port/key`.
        threads: threads of a program; None for this machine's physical cores that this process may use, or for the
            threads that the servers use by themselves. `facts.cores` has the number.
        target: TVM target as a dictionary; None for what the device says of itself. This machine's `threads` are
            its num-cores, and its spec sheet is that of what the target may use.
        linker: for programs of another architecture.

    Raises:
        DeviceError: neither of the two, or more threads than this machine has.
        NoServerError: no tracker, or no server that answers.
        DeviceError: the device cannot run programs for the target.
        DeviceError: its programs cannot be compiled here.
    """
    address = parse_device(device)
    if address is None:
        from .detect import detect_local

        local = detect_local(threads)
        if target is None:
            return ChosenDevice(local)
        from .host_facts import read_host_facts
        from .local_target import with_target

        return ChosenDevice(with_target(local, target, read_host_facts()), asked=target)
    from .rpc_device import describe_remote, find_linker
    from .rpc_fleet import RpcConfig, ask_server

    facts = describe_remote(address, ask_server(address, RpcConfig(threads=threads)), threads, target)
    return ChosenDevice(facts, address, find_linker(facts.target, linker), target)


def fitting_checkpoint(device: ChosenDevice) -> str | None:
    """The checkpoint that fits an RPC device best; None for this machine, which the registry detects itself."""
    if device.address is None:
        return None
    from ..registry import Registry

    return Registry.default().resolve(None, device.facts.device).entry.id


def parse_target(text: str | None) -> dict[str, Any] | None:
    """A `--target`: JSON, a file of JSON, the name of a device of the zoo, or of a CPU or level that LLVM knows here.

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
        except UnknownDeviceError as error:
            from .local_target import cpu_target

            if target_dict := cpu_target(text):
                return target_dict
            raise _bad_target(text) from error
    if not isinstance(target_dict, dict) or "kind" not in target_dict:
        raise _bad_target(text)
    return target_dict


def _bad_target(text: str) -> DeviceError:
    return DeviceError(
        f"{text!r} is no target",
        remedy='give JSON such as {"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}, '
        "a file of it, the name of a device from `tchub devices`, or a CPU or level of LLVM such as x86-64-v2",
        address="",
    )
