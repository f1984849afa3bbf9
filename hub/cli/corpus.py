"""`tchub corpus`: what a folder of measured programs holds, whether it can be trusted, and what it can be made from."""

from __future__ import annotations

import click

from .lazy import LazyGroup

# name -> module in this folder; each module holds a click command named `command`.
COMMANDS = {
    "import": "corpus_import",
    "stats": "corpus_stats",
    "check": "corpus_check",
    "merge": "corpus_merge",
    "replay": "corpus_replay",
}


@click.group("corpus", cls=LazyGroup, modules=COMMANDS)
def command() -> None:
    """Look into corpora of measured programs, make them from other tools' logs, and join them.

    \b
    Examples:
      tchub corpus import v100.json.xz --device v100 --out corpora/v100
      tchub corpus stats corpora/epyc
      tchub corpus check corpora/epyc --json
      tchub corpus merge epyc/shard-*-of-8 --out epyc
    """
