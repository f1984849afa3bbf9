"""`tchub pull`: fetch a checkpoint, verify it, say what it is."""

from __future__ import annotations

import click

from .options import output_options
from .output import Output


@click.command("pull")
@click.argument("name", required=False)
@click.option("--source", metavar="S", help="Only this source: bundled, file:///folder or hf://org/name.")
@click.option("--offline", is_flag=True, help="Use no network: the wheel, folders and the Hub's cache only.")
@output_options
def command(name: str | None, source: str | None, offline: bool, out: Output) -> None:
    """Fetch a checkpoint into this machine's store and verify its sha256.

    NAME is arch-family or arch-family@X.Y.Z, or a device family for the best checkpoint of it; without it, the
    checkpoint that fits this device best is chosen, as `tchub resolve` explains. Sources are tried in this order: the
    wheel, those in TCHUB_SOURCES, those that the index lists. A download can be repeated safely: a checkpoint appears
    whole or not at all.

    \b
    Examples:
      tchub pull tcl-epyc
      tchub pull epyc
      tchub pull
      tchub pull tcl-epyc@1.0.0 --source file:///mnt/zoo --json
    """
    from ..api import pull
    from ..registry.describe import read_json
    from .summary import draw_summary, facts

    pulled = pull(name, source=source, offline=offline)
    entry = pulled.entry
    metrics = read_json(pulled.path / "metrics.json")
    verdicts = pulled.resolution.verdicts
    result = {
        "name": entry.name,
        "version": entry.version,
        "path": str(pulled.path),
        "source": pulled.source,
        "verified": "ok",
        "files": {file: record.sha256 for file, record in entry.files.items()},
        "summary": facts(entry),
        "metrics": dict(entry.metrics),
        "verdicts": [verdict.as_dict() for verdict in verdicts],
        "warnings": list(pulled.resolution.warnings),
    }
    out.data(result, lambda console: draw_summary(entry, metrics, console))
    if len(verdicts) > 1:
        out.note(f"chosen: {entry.id}: {verdicts[0].reason}")
    for verdict in verdicts[1:]:
        out.note(f"passed over: {verdict.id}: {verdict.passed_over}")
    came = "already here" if pulled.source == "store" else f"from {pulled.source}"
    out.note(f"{entry.id} {came}, sha256 verified, in {pulled.path}")
    out.hint(f"tchub adapt {name or entry.name} --device local --budget 10%")
