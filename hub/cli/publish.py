"""`tchub publish`: a checkpoint goes to the Hub, and its entry to an index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .again import given_again
from .options import index_options, output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..publishing.publish import Published


@click.command("publish")
@click.argument("name_or_path")
@click.option("--repo", required=True, metavar="ORG/NAME", help="The Hub repository; made when it is not there.")
@click.option("--version", metavar="X.Y.Z", help="Publish it as this version. Default: its config's.")
@click.option("--private", is_flag=True, help="Only in a private repository; by default no index is asked.")
@click.option("--create-pr", is_flag=True, help="Propose it by a pull request, where you may not write.")
@index_options
@click.option(
    "--corpus", "corpora", multiple=True, metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A corpus that it learnt from or is judged by, in a folder of its name. Repeatable.",
)  # fmt: skip
@click.option("--without-evaluation", is_flag=True, help="Do not evaluate the scores again.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads to use.")
@click.option("--dry-run", is_flag=True, help="Check it, and say what would be uploaded.")
@output_options
def command(
    name_or_path: str,
    repo: str,
    version: str | None,
    private: bool,
    create_pr: bool,
    index_repo: str | None,
    index_named: bool,
    corpora: tuple[Path, ...],
    without_evaluation: bool,
    threads: int,
    dry_run: bool,
    out: Output,
) -> None:
    """Publish a checkpoint on the Hugging Face Hub. NAME_OR_PATH is a folder, or a name that `tchub list` shows.

    First everything is checked, as by `tchub check`, and the card is written from config.json and metrics.json. Then
    all files go up as one commit, which is tagged vX.Y.Z, and the index is asked to list it. A version never changes;
    an interrupted run is finished by the same command. The token is that of `hf auth login`, or HF_TOKEN.

    \b
    Examples:
      tchub publish runs/tilenet-epyc --repo me/tilenet-epyc --corpus corpora/epyc-turin --dry-run
      tchub publish runs/tilenet-epyc --repo me/tilenet-epyc --corpus corpora/epyc-turin
      tchub publish runs/tilenet-epyc --repo lab/tilenet-epyc --corpus corpora/epyc-turin --create-pr
    """
    from ..publishing.publish import publish
    from .checkpoints import find_folder

    done = publish(
        find_folder(name_or_path),
        repo,
        version=version,
        private=private,
        create_pr=create_pr,
        index_repo=index_repo,
        index_named=index_named,
        corpora=corpora,
        evaluate=not without_evaluation,
        threads=threads,
        dry_run=dry_run,
        note=out.note,
    )
    out.data(done.as_dict(), lambda console: _draw(done, console))
    out.hint(_next(done))


def _draw(done: Published, console: Console) -> None:
    lines = [f"{done.outcome}: {done.name}@{done.version} at {done.url}"]
    lines += [f"  commit: {done.commit}"] if done.commit else []
    lines += [f"  tag: {done.tag}"] if done.tag else []
    if done.index:
        lines.append(f"  index: {done.index.url or f'{done.index.repo} lists it already'}")
    lines += [f"  {name}  sha256 {sha256}" for name, sha256 in sorted(done.files.items())]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _next(done: Published) -> str:
    if done.outcome == "dry-run":
        return given_again(without=["dry_run"])
    if done.outcome == "proposed":
        later = f"# tags it, by an owner of {done.repo}, once {done.url} is merged"
        return f"{given_again(without=['create_pr'])}   {later}"
    if done.index is None:
        return f"{given_again(without=['no_index'])} --index-repo ORG/NAME   # so that tchub pull finds it"
    merged = f"   # once {done.index.url} is merged" if done.index.url else ""
    return f"tchub index refresh && tchub pull {done.name}@{done.version}{merged}"
