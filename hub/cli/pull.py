"""`tchub pull`: fetch checkpoints, verify them, say what they are; with a lock file, pin them or follow the pins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..registry import PulledCheckpoint


@click.command("pull")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--source", metavar="S", help="Only this source: bundled, file:///folder, https://host/folder or hf://org/name."
)
@click.option("--offline", is_flag=True, help="Use no network: the wheel, folders and the Hub's cache only.")
@click.option("--lock", is_flag=True, help="Pin what is pulled in the lock file; without a NAME, renew its pins.")
@click.option("--frozen", is_flag=True, help="Pull exactly what the lock file pins; without a NAME, all of it.")
@click.option(
    "--lock-file", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH", help="[default: tchub.lock]"
)
@output_options
def command(
    names: tuple[str, ...],
    source: str | None,
    offline: bool,
    lock: bool,
    frozen: bool,
    lock_file: Path | None,
    out: Output,
) -> None:
    """Fetch checkpoints into this machine's store and verify their sha256.

    NAME is arch-family or arch-family@X.Y.Z, or a device family for the best checkpoint of it; without it, the
    checkpoint that fits this device best is chosen, as `tchub resolve` explains. Sources are tried in this order: the
    wheel, those in TCHUB_SOURCES, those that the index lists. A download can be repeated safely: a checkpoint appears
    whole or not at all. `--json` prints an object for one NAME, and a list for several or for a lock file's all.

    \b
    Examples:
      tchub pull tcl-epyc
      tchub pull epyc
      tchub pull
      tchub pull tcl-epyc@1.0.0 --source file:///mnt/zoo --json
      tchub pull tcl-epyc tilenet-t4 --lock     # writes tchub.lock
      tchub pull --frozen                       # the same files, anywhere and at any time
    """
    from ..registry.lock import LOCK_FILE

    if lock and frozen:
        raise click.UsageError("--lock changes the lock file, --frozen follows it: give one of them")
    if lock_file and not (lock or frozen):
        raise click.UsageError("--lock-file needs --lock, to change it, or --frozen, to follow it")
    lock_file = lock_file or Path(LOCK_FILE)
    how: dict[str, Any] = {"source": source, "offline": offline}
    if lock or frozen:
        from ..registry.pinning import pull_and_pin, pull_pinned

        pulled = (pull_and_pin if lock else pull_pinned)(names, lock=lock_file, **how)
    else:
        from ..api import pull

        pulled = [pull(name, **how) for name in names or [None]]
    results = [_result(one) for one in pulled]
    single = len(names) == 1 or not (names or lock or frozen)
    out.data(results[0] if single else results, lambda console: _draw(pulled, console))
    for one in pulled:
        _explain(one, out)
    if lock:
        out.note(f"{len(pulled)} pinned in {lock_file}")
    if pulled:
        from .summary import next_step

        out.hint(next_step(pulled[0].entry, names[0] if single and names else ""))


def _result(pulled: PulledCheckpoint) -> dict[str, Any]:
    from .summary import facts

    entry = pulled.entry
    return {
        "name": entry.name,
        "version": entry.version,
        "path": str(pulled.path),
        "source": pulled.source,
        "verified": "ok",
        "files": {file: record.sha256 for file, record in entry.files.items()},
        "summary": facts(entry),
        "metrics": dict(entry.metrics),
        "verdicts": [verdict.as_dict() for verdict in pulled.resolution.verdicts],
        "warnings": list(pulled.resolution.warnings),
    }


def _draw(pulled: list[PulledCheckpoint], console: Console) -> None:
    from ..registry.describe import read_json
    from .summary import draw_summary

    for one in pulled:
        draw_summary(one.entry, read_json(one.path / "metrics.json"), console)


def _explain(pulled: PulledCheckpoint, out: Output) -> None:
    entry, verdicts = pulled.entry, pulled.resolution.verdicts
    if len(verdicts) > 1:
        out.note(f"chosen: {entry.id}: {verdicts[0].reason}")
    for verdict in verdicts[1:]:
        out.note(f"passed over: {verdict.id}: {verdict.passed_over}")
    came = "already here" if pulled.source == "store" else f"from {pulled.source}"
    out.note(f"{entry.id} {came}, sha256 verified, in {pulled.path}")
