"""`tchub corpus stats`: what a corpus holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console


@click.command("stats")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--seed", default=0, show_default=True, help="Seed of the split that is counted.")
@output_options
def command(folder: str, seed: int, out: Output) -> None:
    """Count tasks, programs, failures, frameworks, licences, splits and the noise of the repeats.

    \b
    Examples:
      tchub corpus stats corpora/epyc
      tchub corpus stats corpora/epyc --json
    """
    from ...zoo.corpus import Corpus, corpus_stats

    found = corpus_stats(Corpus.open(folder), seed)
    out.data(found, lambda console: _draw(found, console))
    out.hint(f"tchub corpus check {folder}")


def _draw(found: dict[str, Any], console: Console) -> None:
    for key, value in found.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        text = ", ".join(map(str, value)) if isinstance(value, list) else text
        text = f"{value:.4g}" if isinstance(value, float) else text
        console.print(f"{key.replace('_', ' '):<26}{text}", highlight=False)
