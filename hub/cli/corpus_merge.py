"""`tchub corpus merge`: several corpora of one device become one."""

from __future__ import annotations

import click

from .options import output_options
from .output import Output


@click.command("merge")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(file_okay=False))
@click.option("--out", "folder", required=True, type=click.Path(file_okay=False), help="Folder of the whole.")
@output_options
def command(folders: tuple[str, ...], folder: str, out: Output) -> None:
    """Make one corpus of several of one device, e.g. of what `tchub collect --shard` measured on many machines.

    What --out holds already stays in it, so shards may be merged as they come in. Merging again, or corpora that
    overlap, changes nothing: each program is there once, and the order of the folders does not matter.

    \b
    Examples:
      tchub corpus merge epyc/shard-*-of-8 --out epyc
      tchub corpus merge monday tuesday --out both --json
    """
    from ...zoo.corpus import merge_corpora

    merged = merge_corpora(folder, folders)
    meta = merged.corpus.meta
    counts = {name: meta[name] for name in ("tasks", "programs")}
    found = {"path": folder, **counts, "given": merged.given, "changed": merged.changed}
    said = "" if merged.changed else "; it held all of them before"
    out.data(
        found,
        lambda console: console.print(
            f"{found['programs']} programs of {found['tasks']} tasks in {folder}, from {found['given']}{said}",
            highlight=False,
            soft_wrap=True,
        ),
    )
    out.hint(f"tchub corpus check {folder}")
