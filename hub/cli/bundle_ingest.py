"""`tchub bundle ingest`: what was measured on the device becomes a corpus."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .options import output_options
from .output import Output


@click.command("ingest")
@click.argument("results", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--bundle", "archive", required=True, type=click.Path(path_type=Path), help="The archive measured.")
@click.option("--device", required=True, help="The device that measured (`tchub devices`).")
@click.option("--out", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="The corpus.")
@output_options
def command(results: Path, archive: Path, device: str, folder: Path, out: Output) -> None:
    """Check results against their bundle and add them to a corpus; the same results twice change nothing.

    \b
    Examples:
      tchub bundle ingest results.jsonl --bundle h200.zip --device h200 --out corpora/h200
    """
    from ..bundle.archive import Bundle
    from ..bundle.ingest import ingest

    found = ingest(results, Bundle(archive), device, folder)
    out.data(
        asdict(found),
        lambda console: console.print(
            f"{found.results} results ({found.failed} failed, {found.wrong} wrong, {found.unmeasured} not measured); "
            f"{found.programs} programs of {found.tasks} tasks in {found.path}"
        ),
    )
    out.hint(f"tchub corpus stats {folder}")
