"""`tchub doctor` and `tchub devices`: check this machine, and show spec sheets of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from .options import command
from .output import Column, Output, Part

if TYPE_CHECKING:
    from ...zoo.devices import Device
    from ..device.detect import LocalDevice
    from ..device.doctor import Check

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@command("doctor")
def doctor_command(output: Output) -> None:
    """Check Python, TVM, the compiler, the clock's noise, the disk and the GPU.

    Ends with exit code 1 if a check failed; warnings alone give 0.

    \b
    Examples:
      tchub doctor
      tchub doctor --json
    """
    from ..device.doctor import failed, run_checks

    output.note("checking this machine; it takes some seconds")
    checks = list(run_checks())
    bad = failed(checks)
    output.data({"ok": not bad, "checks": [check.to_dict() for check in checks]}, _checks(checks))
    if bad:
        raise click.exceptions.Exit(1)
    output.hint("tchub devices local")


def _checks(checks: Sequence[Check]) -> Iterator[Part]:
    from rich.text import Text

    results = [check.value + (f"\n-> {check.remedy}" if check.remedy else "") for check in checks]
    yield [
        Column("check", [check.name for check in checks]),
        Column("status", [Text(check.status, _STYLES[check.status]) for check in checks]),
        Column("result", results, wraps=True),
    ]


@command("devices")
@click.argument("names", metavar="[NAME | add NAME]", nargs=-1)
@click.option("--kind", type=click.Choice(["cpu", "gpu"]), help="Only devices of this kind.")
@click.option("--from", "source", metavar="SHEET", help="With add: local, a JSON file, or the nearest device.")
def devices_command(names: tuple[str, ...], kind: str | None, source: str | None, output: Output) -> None:
    """List the device families, show one device's numbers with their sources, detect this machine, or add a device.

    NAME is a device, a family or an alias; `local` is this machine. `add` writes a sheet of yours; correct it there.

    \b
    Examples:
      tchub devices
      tchub devices --kind gpu
      tchub devices epyc-turin
      tchub devices local --json
      tchub devices add rtx4090 --from rtx3090
    """
    from ...zoo.devices import get_device, list_devices, own_folder

    adds, *more = (True, *names[1:]) if names[:1] == ("add",) else (False, *names)
    if len(more) > 1 or adds != (source is not None) or (adds and not more):
        raise click.UsageError("give one NAME, or: add NAME --from local, a JSON file or the nearest device")
    name = more[0] if more else None
    if name is not None and kind is not None:
        raise click.UsageError("--kind chooses from the list: give it without a NAME")
    if source and name:
        from ..device.detect import add_device

        added, file = add_device(name, source), own_folder() / f"{name}.json"
        output.data(added.to_dict() | {"path": str(file)}, f"{added.title}, a {added.kind.upper()}: {file}")
        output.hint(f"tchub corpus import LOG --device {name} --out DIR")
    elif name == "local":
        from ..device.detect import detect_local

        local = detect_local()
        output.data(local.to_dict(), _local(local))
        output.hint(f"tchub list --family {local.family}")
    elif name is None:
        devices = list_devices(kind)
        output.data([device.to_dict() for device in devices], _list(devices))
        output.hint("tchub devices local")
    else:
        device = get_device(name)
        output.data(device.to_dict(), _sheet(device))
        if others := [d.name for d in list_devices() if d.family == device.family and d.name != device.name]:
            output.note(f"also of the family {device.family}: {', '.join(others)}")


def _list(devices: Sequence[Device]) -> Iterator[Part]:
    yield [
        Column("family", [device.family for device in devices]),
        Column("name", [device.name for device in devices]),
        Column("kind", [device.kind for device in devices]),
        Column("device", [device.title for device in devices], leaves=2),
        Column("target", [target_text(device.target) for device in devices], leaves=1, wraps=True),
    ]


def _sheet(device: Device) -> Iterator[Part]:
    """Show the facts, then every number with its source."""
    yield device.title
    yield {
        "name": device.name,
        "family": device.family,
        "vendor and ISA": f"{device.vendor}, {device.isa}, {device.microarchitecture}",
        "also called": ", ".join(device.aliases) or "-",
        "TVM target": target_text(device.target),
        "notes": device.notes or "-",
    }
    values = device.spec.values()
    yield [
        Column("number", list(values)),
        Column("value", ["-" if value is None else f"{value:g}" for value in values.values()], True),
        Column("source", [device.spec.sources[name] for name in values], wraps=True),
    ]


def _local(local: LocalDevice) -> Iterator[Part]:
    """Show what was detected and why, then the spec sheet."""
    facts: dict[str, Any] = {
        "device": f"{local.device.name}, {'recognised' if local.exact else 'the nearest known stands in'}",
        "CPU": local.cpu_model,
        "extensions": ", ".join(local.isa) or "-",
        "target": target_text(local.target),
    }
    facts |= {f"GPU {i}": f"{gpu.name} ({gpu.device or 'no spec sheet'})" for i, gpu in enumerate(local.gpus)}
    yield facts | {f"reason {i}": reason for i, reason in enumerate(local.reasons, start=1)}
    yield ""
    yield from _sheet(local.device)


def target_text(target: dict[str, Any]) -> str:
    """Return a short text of a target for people: `llvm -mcpu=znver5 -num-cores=8`."""
    shown = ("mcpu", "arch", "mtriple", "num-cores")
    return " ".join([target["kind"], *(f"-{key}={target[key]}" for key in shown if key in target)])
