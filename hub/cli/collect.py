"""`tchub collect`: measure a corpus of programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from .options import device_options, output_options, threads_option
from .output import Output


@click.command(short_help="Measure a corpus of programs.")
@device_options
@click.option(
    "--suite", default="reference", show_default=True, help="A suite, network or operator; several with commas."
)
@click.option("--programs", default=1000, show_default=True, type=click.IntRange(8), help="Programs in all.")
@click.option(
    "--out",
    "folder",
    required=True,
    type=click.Path(file_okay=False),
    help="Folder of the corpus and its journal.",
)
@threads_option
@click.option("--seed", default=0, show_default=True, help="Seed of the candidates.")
@click.option("--shard", metavar="I/N", help="Measure one of N equal parts of the tasks, into --out/shard-I-of-N.")
@click.option(
    "--besides",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Leave out the tasks of this corpus. Repeatable.",
)
@output_options
def command(
    device: str,
    target: dict[str, Any] | None,
    linker: str | None,
    suite: str,
    programs: int,
    folder: str,
    threads: int | None,
    seed: int,
    shard: str | None,
    besides: tuple[str, ...],
    out: Output,
) -> None:
    """Measure programs of real networks and write them as a corpus (Parquet).

    Ends with a resumable journal: run the same command again after a stop, and nothing is measured twice.

    \b
    Examples:
      tchub collect --suite reference --programs 2000 --out my-corpus
      tchub collect --suite full --programs 12000 --out epyc --seed 0
      tchub collect --suite full --programs 12000 --out epyc --shard 3/8   # on one of 8 machines of a kind
      tchub collect --suite full --programs 12000 --out graviton --device rpc://tracker.lan:9190/graviton
      tchub corpus merge epyc/shard-*-of-8 --out epyc
    """
    from ..tuning.collect import collect
    from ..tuning.shards import Shard
    from .collect_progress import shown_collecting
    from .native_log import native_output_logged

    part = Shard.parse(shard) if shard else None
    with native_output_logged(out, part.folder(folder) if part else folder), shown_collecting(out, programs) as tell:
        result = collect(
            suite,
            programs,
            folder,
            device=device,
            target=target,
            linker=linker,
            threads=threads,
            seed=seed,
            shard=part,
            besides=besides,
            progress=tell,
            say=out.note,
        )
    out.data(
        asdict(result),
        lambda console: console.print(
            f"{result.programs} programs of {result.tasks} tasks ({result.failed} failed) in {result.path}"
        ),
    )
    whole = f"tchub corpus merge {folder}/shard-*-of-{part.count} --out {folder}" if part else None
    out.hint(whole or f"tchub corpus stats {folder}")
