"""`tchub corpus`: what a folder of measured programs holds, and whether it can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console


@click.group("corpus")
def command() -> None:
    """Look into a corpus of measured programs.

    \b
    Examples:
      tchub corpus stats corpora/epyc
      tchub corpus check corpora/epyc --json
    """


@command.command("stats")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--seed", default=0, show_default=True, help="Seed of the split that is counted.")
@output_options
def stats(folder: str, seed: int, out: Output) -> None:
    """Count tasks, programs, failures, splits and the noise of the repeats.

    \b
    Examples:
      tchub corpus stats corpora/epyc
      tchub corpus stats corpora/epyc --json
    """
    from ...zoo.corpus import Corpus, corpus_stats

    found = corpus_stats(Corpus.open(folder), seed)
    out.data(found, lambda console: _draw_stats(found, console))
    out.hint(f"tchub corpus check {folder}")


@command.command("check")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--seed", default=0, show_default=True, help="Seed of the split that is checked.")
@output_options
def check(folder: str, seed: int, out: Output) -> None:
    """Check hashes, counts, splits, duplicates, failures and devices; exit code 1 if anything is wrong.

    \b
    Examples:
      tchub corpus check corpora/epyc
      tchub corpus check corpora/epyc --json
    """
    from ...zoo.corpus import Corpus, CorpusError, check_corpus

    findings = [finding.as_dict() for finding in check_corpus(Corpus.open(folder), seed)]
    wrong = [finding["name"] for finding in findings if not finding["ok"]]
    if not wrong or out.mode != "json":  # with --json the error is the one document on stdout
        out.data({"ok": not wrong, "findings": findings}, lambda console: _draw_findings(findings, console))
    if wrong:
        raise CorpusError(
            f"{folder} failed {len(wrong)} of {len(findings)} checks: {', '.join(wrong)}",
            remedy="do not train on it before it is mended: collect it again, or leave out what is wrong",
            findings=findings,
        )
    out.hint(f"tchub train --corpus {folder}")


def _draw_stats(found: dict[str, Any], console: Console) -> None:
    for key, value in found.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        text = ", ".join(map(str, value)) if isinstance(value, list) else text
        text = f"{value:.4g}" if isinstance(value, float) else text
        console.print(f"{key.replace('_', ' '):<22}{text}", highlight=False, markup=False)


def _draw_findings(findings: list[dict[str, Any]], console: Console) -> None:
    for finding in findings:
        mark = "ok  " if finding["ok"] else "FAIL"
        console.print(f"{mark}  {finding['name']:<26}{finding['message']}", highlight=False, markup=False)
