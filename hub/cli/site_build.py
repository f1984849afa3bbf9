"""`tchub site build`: write the static catalogue."""

from __future__ import annotations

from pathlib import Path

import click

from .options import output_options
from .output import Output


@click.command("build")
@click.option(
    "--output", required=True, metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write: new, empty, or an earlier catalogue.",
)  # fmt: skip
@click.option(
    "--index", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="List the checkpoints of this index.json. Default: those of `tchub list`.",
)  # fmt: skip
@click.option(
    "--source", metavar="file:///FOLDER",
    help="List the checkpoints of a folder laid out as <name>/<version>/, by its own index.json, with its cards.",
)  # fmt: skip
@click.option("--title", metavar="TEXT", help="What the pages are called.")
@output_options
def command(output: Path, index: Path | None, source: str | None, title: str | None, out: Output) -> None:
    """Write the published checkpoints as web pages: search, filters, comparison, one page a checkpoint.

    The pages need no server and no network: open DIR/index.html, or put DIR on any web server. Cards and plots are
    those of the checkpoints that are on this machine. The same checkpoints give the same bytes.

    \b
    Examples:
      tchub site build --output site
      tchub site build --output public --title "Cost models of our cluster" --source file:///mnt/zoo
      tchub site build --output site --index index.json --json
    """
    from ..registry.catalogue import registry_of
    from ..site.build import TITLE, build

    built = build(registry_of(index, source), output, title or TITLE)
    number = len(built.checkpoints)
    out.data(built.as_dict(), lambda console: console.print(built.path / "index.html", soft_wrap=True))
    out.note(f"{number} checkpoints; {built.written} of {built.files} files written, {built.removed} removed")
