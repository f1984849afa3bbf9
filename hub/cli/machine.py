"""`tchub doctor` and `tchub devices`: check this machine, and show spec sheets of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ...zoo.devices import Device
    from ..device.detect import LocalDevice
    from ..device.doctor import Check

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@click.command("doctor")
@output_options
def doctor_command(out: Output) -> None:
    """Check Python, TVM, the compiler, the clock's noise, the disk and the GPU.

    Ends with exit code 1 if a check failed; warnings alone give 0.

    \b
    Examples:
      tchub doctor
      tchub doctor --json
    """
    from ..device.doctor import failed, run_checks

    out.note("checking this machine; it takes some seconds")
    checks = list(run_checks())
    bad = failed(checks)
    data = {"ok": not bad, "checks": [check.to_dict() for check in checks]}
    out.data(data, lambda console: draw(checks, console))
    if bad:
        click.get_current_context().exit(1)
    out.hint("tchub devices local")


def draw(checks: list[Check], console: Console) -> None:
    """The table, each remedy under its check."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("found")
    for check in checks:
        remedy = f"\n-> {check.remedy}" if check.remedy else ""
        table.add_row(check.name, Text(check.status, _STYLES[check.status]), check.value + remedy)
    console.print(table)


@click.command("devices")
@click.argument("name", required=False)
@click.option("--kind", type=click.Choice(["cpu", "gpu"]), help="Only devices of this kind.")
@output_options
def devices_command(name: str | None, kind: str | None, out: Output) -> None:
    """List the device families, show one device's numbers with their sources, or detect this machine.

    NAME is a device, a family or an alias; `local` is this machine.

    \b
    Examples:
      tchub devices
      tchub devices --kind gpu
      tchub devices epyc-turin
      tchub devices local --json
    """
    if name is not None and kind is not None:
        raise click.UsageError("--kind chooses from the list: give it without a NAME")
    if name == "local":
        _local(out)
    elif name is not None:
        _one(name, out)
    else:
        _all(kind, out)


def _all(kind: str | None, out: Output) -> None:
    from ...zoo.devices import list_devices

    devices = list_devices(kind)
    out.data([device.to_dict() for device in devices], lambda console: draw_list(devices, console))
    out.hint("tchub devices local")


def _one(name: str, out: Output) -> None:
    from ...zoo.devices import get_device, list_devices

    device = get_device(name)
    out.data(device.to_dict(), lambda console: draw_device(device, console))
    others = [d.name for d in list_devices() if d.family == device.family and d.name != device.name]
    if others:
        out.note(f"also of the family {device.family}: {', '.join(others)}")


def _local(out: Output) -> None:
    from ..device.detect import detect_local

    local = detect_local()
    out.data(local.to_dict(), lambda console: draw_local(local, console))
    out.hint(f"tchub list --family {local.family}")


def draw_list(devices: list[Device], console: Console) -> None:
    """One line a device."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("family", "name", "kind"):
        table.add_column(title, no_wrap=True)
    for title in ("device", "target"):
        table.add_column(title)
    for d in devices:
        table.add_row(d.family, d.name, d.kind, d.title, target_text(d.target))
    console.print(table)


def draw_device(device: Device, console: Console) -> None:
    """The facts, then every number with its source."""
    from rich.table import Table

    console.print(device.title, style="bold", highlight=False)
    facts = {
        "name": device.name,
        "family": device.family,
        "vendor and ISA": f"{device.vendor}, {device.isa}, {device.microarchitecture}",
        "also called": ", ".join(device.aliases) or "-",
        "TVM target": target_text(device.target),
        "notes": device.notes or "-",
    }
    _print_facts(facts, console)
    table = Table(box=None, pad_edge=False)
    table.add_column("number", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("source")
    for name, value in device.spec.values().items():
        text = "-" if value is None else f"{value:g}"
        table.add_row(name, text, device.spec.sources[name])
    console.print(table)


def draw_local(local: LocalDevice, console: Console) -> None:
    """What was detected and why, then the spec sheet."""
    facts: dict[str, Any] = {
        "device": f"{local.device.name}, {'recognised' if local.exact else 'the nearest known stands in'}",
        "CPU": local.cpu_model,
        "extensions": ", ".join(local.isa) or "-",
        "target": target_text(local.target),
    }
    facts |= {f"GPU {i}": f"{g.name} ({g.device or 'no spec sheet'})" for i, g in enumerate(local.gpus)}
    facts |= {f"reason {i}": reason for i, reason in enumerate(local.reasons, start=1)}
    _print_facts(facts, console)
    console.print()
    draw_device(local.device, console)


def target_text(target: dict[str, Any]) -> str:
    """`llvm -mcpu=znver5 -num-cores=8`: short, for people."""
    shown = ("mcpu", "arch", "mtriple", "num-cores")
    return " ".join([target["kind"], *(f"-{key}={target[key]}" for key in shown if key in target)])


def _print_facts(facts: dict[str, Any], console: Console) -> None:
    for name, value in facts.items():
        console.print(f"{name:<15} {value}", highlight=False, soft_wrap=True)
