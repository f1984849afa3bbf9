"""`tchub bundle build`: programs of a workload, compiled for a target, in one small archive."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .options import output_options, threads_option
from .output import Output


@click.command("build")
@click.option("--workload", required=True, help="A network, suite or operator.")
@click.option("--target", "target_name", required=True, help="A device (`tchub devices`), `local`, or TVM's JSON.")
@click.option("--programs", default=200, show_default=True, type=click.IntRange(1), help="Programs in all.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The archive.")
@click.option("--seed", default=0, show_default=True, help="Seed of the candidates.")
@threads_option
@click.option("--code", type=click.Choice(["library", "object", "cubin", "ptx"]), help="How programs travel.")
@click.option("--checkpoint", help="Half of the programs are those that this checkpoint ranks first.")
@click.option("--corpus", "folder", type=click.Path(file_okay=False), help="Evolve from these measured programs.")
@click.option("--max-size", type=click.FloatRange(min=0.1), help="MiB of an archive at most; else several.")
@click.option("--build-timeout", default=60.0, show_default=True, help="Seconds a program may take to compile.")
@output_options
def command(
    workload: str,
    target_name: str,
    programs: int,
    output: Path,
    seed: int,
    threads: int | None,
    code: str | None,
    checkpoint: str | None,
    folder: str | None,
    max_size: float | None,
    build_timeout: float,
    out: Output,
) -> None:
    """Compile programs for a machine that cannot, and pack them with what measures them there.

    Run the same command again after a stop: what was compiled is not compiled again.

    \b
    Examples:
      tchub bundle build --workload bert-tiny --target h200 --programs 200 --output h200.zip
      tchub bundle build --workload papers --target h200 --programs 4400 --max-size 60 --output h200.zip
      tchub bundle build --workload bert-tiny --target h200 --programs 200 --corpus corpora/h200 --output next.zip
    """
    from rich.markup import escape
    from rich.progress import Progress

    from ...zoo.corpus import Corpus
    from ..bundle.build import BuildSettings, build_bundle
    from ..bundle.target import resolve_target

    target = resolve_target(target_name, threads, code)
    limit = int(max_size * 2**20) if max_size else None
    settings = BuildSettings(programs, seed, checkpoint, limit, build_timeout)
    corpus = Corpus.open(folder) if folder else None
    with Progress(console=out.console, disable=out.mode != "human") as bars:
        bar = bars.add_task("compiling", total=programs)

        def tell(done: int, total: int, name: str) -> None:
            bars.update(bar, completed=done, total=total, description=escape(name[:40]))

        result = build_bundle(workload, target, output, settings, corpus=corpus, tell=tell, say=out.note)
    sizes = ", ".join(f"{path} ({size / 2**20:.1f} MiB)" for path, size in zip(result.paths, result.bytes, strict=True))
    out.data(
        asdict(result),
        lambda console: console.print(
            f"{result.programs} programs of {result.tasks} tasks ({result.failed} did not compile): {sizes}"
        ),
    )
    out.hint(f"python3 {result.paths[0]} --output results.jsonl   (on the device)")
