"""`tchub corpus check`: whether corpora can be trusted, each by itself and all together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

# Leaks that are named one by one.
_SHOWN = 20


@click.command("check")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(file_okay=False))
@click.option("--seed", default=0, show_default=True, help="Seed of the splits that are checked.")
@click.option(
    "--protocol-allows",
    "allowed",
    metavar="DIR",
    multiple=True,
    type=click.Path(file_okay=False),
    help="A corpus that a protocol lets train on what the others test on.",
)
@output_options
def command(folders: tuple[str, ...], seed: int, allowed: tuple[str, ...], out: Output) -> None:
    """Check hashes, counts, splits, duplicates, failures and devices; exit code 1 if anything is wrong.

    Of several corpora, whatever their frameworks and devices, none may train on a computation that another
    one tests on.

    \b
    Examples:
      tchub corpus check corpora/epyc
      tchub corpus check corpora/v100 corpora/v100-autotvm corpora/k80
      tchub corpus check corpora/v100 corpora/k80 --protocol-allows corpora/v100
    """
    from ...zoo.corpus import Corpus, CorpusError, check_corpus, check_leaks

    corpora = [Corpus.open(folder) for folder in folders]
    findings = [{"path": str(c.path), **f.as_dict()} for c in corpora for f in check_corpus(c, seed)]
    leaks = [leak.as_dict() for leak in check_leaks(corpora, seed, allowed)]
    wrong = sorted({finding["name"] for finding in findings if not finding["ok"]})
    wrong += ["no leak across corpora"] * bool(leaks)
    result = {"ok": not wrong, "findings": findings, "leaks": leaks}
    if not wrong or out.mode != "json":  # with --json the error is the one document on stdout
        out.data(result, lambda console: _draw(result, len(corpora), console))
    if wrong:
        raise CorpusError(
            f"{', '.join(folders)}: {len(wrong)} checks failed: {', '.join(wrong)}",
            remedy=_remedy(leaks),
            findings=findings,
            leaks=leaks,
        )
    out.hint(f"tchub train --corpus {folders[0]}")


def _remedy(leaks: list[dict[str, Any]]) -> str:
    if leaks:
        return "leave these computations out of the training, or say --protocol-allows DIR if a protocol allows it"
    return "do not train on it before it is mended: collect it again, or leave out what is wrong"


def _draw(result: dict[str, Any], corpora: int, console: Console) -> None:
    def line(ok: bool, name: str, message: str) -> None:
        console.print(f"{'ok  ' if ok else 'FAIL'}  {name:<26}{message}", highlight=False)

    path = None
    for finding in result["findings"]:
        if corpora > 1 and finding["path"] != path:
            path = finding["path"]
            console.print(path, highlight=False)
        line(finding["ok"], finding["name"], finding["message"])
    leaks = result["leaks"]
    if corpora > 1:
        line(not leaks, "no leak across corpora", f"{len(leaks)} test computations are in another's training set")
    for leak in leaks[:_SHOWN]:
        line(False, leak["computation"], f"tested by {leak['tested_by']}, in {leak['part']} of {leak['trained_by']}")
    if len(leaks) > _SHOWN:
        console.print(f"and {len(leaks) - _SHOWN} more (--json lists all)", highlight=False)
