"""`tchub doctor`, `devices` and `cache`: check this machine, show spec sheets of devices, and what was fetched here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..text import Column, Part, size_text
from .options import command
from .output import Output

if TYPE_CHECKING:
    from ...zoo.devices import Device
    from ..device.detect import LocalDevice

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@command("doctor")
def doctor_command(output: Output) -> None:
    """Check Python, TVM, the compiler, the clock's noise, the disk and the GPU.

    Ends with exit code 1 if a check failed; warnings alone give 0.

    \b
    Examples:
      tchub doctor
    """
    from rich.text import Text

    from ..device.doctor import run_checks

    output.note("checking this machine; it takes some seconds")
    checks = list(run_checks())
    bad = any(check.status == "fail" for check in checks)
    results = [check.value + (f"\n-> {check.remedy}" if check.remedy else "") for check in checks]
    table = [
        Column("check", [check.name for check in checks]),
        Column("status", [Text(check.status, _STYLES[check.status]) for check in checks]),
        Column("result", results, wraps=True),
    ]
    output.data({"ok": not bad, "checks": checks}, [table])
    if bad:
        raise click.exceptions.Exit(1)
    output.hint("tchub devices local")


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
        table = [
            *(Column(name, [getattr(device, name) for device in devices]) for name in ("family", "name", "kind")),
            Column("device", [device.title for device in devices], leaves=2),
            Column("target", [target_text(device.target) for device in devices], leaves=1, wraps=True),
        ]
        output.data([device.to_dict() for device in devices], [table])
        output.hint("tchub devices local")
    else:
        device = get_device(name)
        output.data(device.to_dict(), _sheet(device))
        if others := [d.name for d in list_devices() if d.family == device.family and d.name != device.name]:
            output.note(f"also of the family {device.family}: {', '.join(others)}")


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
    from ..device.detect import match_gpu

    facts: dict[str, Any] = {
        "device": f"{local.device.name}, {'recognised' if local.exact else 'the nearest known stands in'}",
        "CPU": local.cpu_model,
        "extensions": ", ".join(local.isa) or "-",
        "target": target_text(local.target),
    }
    facts |= {f"GPU {i}": f"{gpu} ({match_gpu(gpu) or 'no spec sheet'})" for i, gpu in enumerate(local.gpus)}
    yield facts | {f"reason {i}": reason for i, reason in enumerate(local.reasons, start=1)}
    yield ""
    yield from _sheet(local.device)


def target_text(target: dict[str, Any]) -> str:
    """Return a short text of a target for people: `llvm -mcpu=znver5 -num-cores=8`."""
    shown = ("mcpu", "arch", "mtriple", "num-cores")
    return " ".join([target["kind"], *(f"-{key}={target[key]}" for key in shown if key in target)])


@command("cache")
@click.option("--prune", is_flag=True, help="Remove older versions, damaged copies and leftovers of stopped downloads.")
@click.option("--keep", type=click.IntRange(min=0), default=1, help="Newest versions of a name kept.")
@click.option("--dry-run", is_flag=True, help="Show what --prune would remove, and remove nothing.")
def cache_command(prune: bool, keep: int, dry_run: bool, output: Output) -> None:
    """Show what the cache holds: size, and whether it is whole (sha256); or remove what is not needed.

    Checkpoints that were adapted on this machine are no cache, and are never touched (`tchub list --local`). What
    another process is writing is left alone. What was removed is fetched again when it is needed. TCHUB_CACHE moves the
    cache.

    \b
    Examples:
      tchub cache
      tchub cache --prune --dry-run
      tchub cache --prune --keep 0 --json
    """
    from ..registry import Registry, cache

    store = Registry.default().cache
    if prune:
        removed = cache.prune(store, keep=keep, dry_run=dry_run)
        freed = sum(removal.freed for removal in removed)
        result = {"freed": freed, "dry_run": dry_run, "removed": removed}
        output.data(result, f"{'would free' if dry_run else 'freed'} {size_text(freed)}")
        for removal in removed:
            output.note(f"{removal.name}: {size_text(removal.freed)}: {removal.reason}")
        return
    if dry_run or keep != 1:
        raise click.UsageError("these options are for --prune")
    items = cache.contents(store)
    parts = {kind: sum(item.size for item in items if item.what == kind) for kind in ("checkpoints", *cache.OTHERS)}
    total, path = sum(parts.values()), store.root.parent
    table = [
        Column("kind", [item.what for item in items], leaves=1),
        Column("name", [item.name for item in items]),
        Column("size", [size_text(item.size) for item in items], True),
        Column("state", [item.state for item in items]),
    ]
    output.data({"path": path, "bytes": total, "by": parts, "items": items}, [table] if items else [])
    output.note(f"{size_text(total)} in {path}" if items else f"nothing is in {path}")
    if items:
        output.hint("tchub cache --prune --dry-run")
