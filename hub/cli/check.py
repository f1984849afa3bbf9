"""`tchub check`: may a checkpoint be published?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..publishing.check import Report

_MARKS = {"ok": "ok", "failed": "FAIL", "not-checked": "open"}


@click.command("check")
@click.argument("name_or_path")
@click.option(
    "--corpus", "corpora", multiple=True, metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A corpus that it learnt from or is judged by, in a folder of its name. Repeatable.",
)  # fmt: skip
@click.option("--without-evaluation", is_flag=True, help="Leave the questions that need the corpora open.")
@click.option(
    "--tolerance", default=0.002, show_default=True, type=click.FloatRange(0, 1),
    help="How far a score that is evaluated again may be from the published one.",
)  # fmt: skip
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads to use.")
@output_options
def command(
    name_or_path: str,
    corpora: tuple[Path, ...],
    without_evaluation: bool,
    tolerance: float,
    threads: int,
    out: Output,
) -> None:
    """Check everything that a reviewer looks at. NAME_OR_PATH is a folder, or a name that `tchub list` shows.

    The files and their contents, whether the weights load, name and version, the device, the card and its facts, the
    licences, the scores; with the corpora also whether the scores come out again, and whether what was learnt can be
    had without a test task. Exit code 1 when something is wrong, or not checked and not left out.

    \b
    Examples:
      tchub check runs/tilenet-epyc --corpus corpora/epyc-turin
      tchub check tilenet-epyc --without-evaluation
      tchub check tilenet-k80 --corpus k80 --corpus v100 --corpus mi50 --corpus rtx2080ti --corpus a100 --json
    """
    import torch

    from ..publishing.check import check
    from .checkpoints import find_folder

    torch.set_num_threads(threads)
    report = check(
        find_folder(name_or_path),
        corpora=corpora,
        tolerance=tolerance,
        evaluate=not without_evaluation,
        threads=threads,
        note=out.note,
    )
    out.data(report.as_dict(), lambda console: draw(report, console))
    if not report.ok:
        raise click.exceptions.Exit(1)
    given = [word for path in corpora for word in ("--corpus", str(path))]
    out.hint(shlex.join(["tchub", "publish", name_or_path, *given, "--repo", "ORGANISATION/NAME"]))


def draw(report: Report, console: Console) -> None:
    """One line a finding, the remedy of what is wrong under it."""
    for finding in report.findings:
        line = f"{_MARKS[finding.outcome]:<6}{finding.name:<10}{finding.detail}"
        console.print(line, highlight=False, soft_wrap=True)
        if finding.outcome != "ok" and finding.remedy:
            console.print(f"{'':<16}-> {finding.remedy}", highlight=False, soft_wrap=True)
