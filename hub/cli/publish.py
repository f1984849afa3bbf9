"""`tchub check`, `publish` and `contribute`: bring a checkpoint to others."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import device_options, given_again, index_options, output_options, threads_option
from .output import Output, Prompt

if TYPE_CHECKING:
    from rich.console import Console

    from ..contributing.settings import Settings
    from ..contributing.walk import Passed
    from ..publishing.check import Report
    from ..publishing.publish import Published

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
def check_command(
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
    from .zoo import find_folder

    torch.set_num_threads(threads)
    report = check(
        find_folder(name_or_path),
        corpora=corpora,
        tolerance=tolerance,
        evaluate=not without_evaluation,
        threads=threads,
        note=out.note,
    )
    out.data(report.as_dict(), lambda console: draw_check(report, console))
    if not report.ok:
        raise click.exceptions.Exit(1)
    given = [word for path in corpora for word in ("--corpus", str(path))]
    out.hint(shlex.join(["tchub", "publish", name_or_path, *given, "--repo", "ORGANISATION/NAME"]))


def draw_check(report: Report, console: Console) -> None:
    """One line a finding, the remedy of what is wrong under it."""
    for finding in report.findings:
        line = f"{_MARKS[finding.outcome]:<6}{finding.name:<10}{finding.detail}"
        console.print(line, highlight=False, soft_wrap=True)
        if finding.outcome != "ok" and finding.remedy:
            console.print(f"{'':<16}-> {finding.remedy}", highlight=False, soft_wrap=True)


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
def publish_command(
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
    from .zoo import find_folder

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


_FOLDER: Any = click.Path(file_okay=False, path_type=Path)
_STEPS = ("preflight", "device", "facts", "collect", "train", "evaluate", "card", "check", "publish")


@click.command("contribute")
@device_options
@click.option("--output", default="contribution", show_default=True, type=_FOLDER, help="Folder of all that is made.")
@click.option("--networks", default="full", show_default=True, help="Suites, networks, operators; several with commas.")
@click.option(
    "--programs", default=12000, show_default=True, type=click.IntRange(8), help="Programs to measure in all."
)
@threads_option
@click.option(
    "--corpus", "corpora", multiple=True, metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Learn from this corpus and measure nothing. Repeatable; the first one judges.",
)  # fmt: skip
@click.option("--recipe", help="How to train: a recipe that ships, or a file. Default: tilenet, or that of --from.")
@click.option("--from", "base", metavar="BASE", help="Start from the weights of this checkpoint.")
@click.option("--seed", default=0, show_default=True, help="Of the candidates and the training.")
@click.option("--authors", help="Who made it, as it is to be cited.")
@click.option("--weights-licence", metavar="SPDX", help="Licence that you give the weights. There is no default.")
@click.option("--data-licence", metavar="SPDX", help="Licence of what is measured here. There is no default.")
@click.option("--limit", "limits", multiple=True, help="What users should know that no number tells. Repeatable.")
@click.option("--name", help="Of the checkpoint. Default: ARCH-FAMILY.")
@click.option("--version", help="Of the checkpoint. Default: the next one that nobody has.")
@click.option("--repo", metavar="ORG/NAME", help="The Hub repository to publish in.")
@index_options
@click.option("--no-publish", is_flag=True, help="Stop with a folder that is ready to be published.")
@click.option("--yes", "confirmed", is_flag=True, help="Publish without asking.")
@click.option("--step", "again_from", type=click.Choice(_STEPS), help="Do this step again, and all after it.")
@output_options
def contribute_command(
    output: Path,
    networks: str,
    limits: tuple[str, ...],
    no_publish: bool,
    again_from: str | None,
    out: Output,
    **options: Any,
) -> None:
    """Measure, train, evaluate, describe, check and publish a checkpoint for a device.

    Nine steps: preflight, device, facts, collect, train, evaluate, card, check, publish. What is finished is kept in
    the output folder: the same command goes on where it stopped, also after a kill; with other options it does again
    what depends on them. Nothing leaves the machine before you agree; then it is published, and the index is asked to
    list it, as by `tchub publish`. Facts that no measurement tells are asked for, or read from the options or from
    contribute.toml in the output folder (authors, weights_licence, data_licence, limits, name, version). The default,
    12,000 programs of all reference networks, takes hours.

    \b
    Examples:
      tchub contribute --device local --no-publish
      tchub contribute --device local --networks reference,bert-tiny --programs 2000 --output mine
      tchub contribute --corpus corpora/epyc-turin --from tilenet-xeon --repo me/tilenet-epyc
      tchub contribute --output mine --step train
    """
    from ..contributing.settings import CardFacts, Settings
    from ..contributing.walk import contribute
    from .progress import shown_collecting

    if options["corpora"] and options["data_licence"]:
        raise click.UsageError("--data-licence is of what is measured here; a --corpus says its own")
    facts = CardFacts(
        **{key: options.pop(key) for key in ("authors", "weights_licence", "data_licence", "name", "version")},
        limits=limits or None,
    )
    settings = Settings(output, networks=tuple(networks.split(",")), facts=facts, publish=not no_publish, **options)
    with shown_collecting(out, settings.programs) as tell:
        passed = contribute(settings, ask=Prompt.find(), again_from=again_from, note=out.note, progress=tell)
    result = {"output": str(output), "steps": [step.as_dict() for step in passed]}
    out.data(result, lambda console: draw_contribute(passed, console))
    if "published" not in passed[-1].facts:
        out.hint(_publish(settings, passed))


def draw_contribute(passed: list[Passed], console: Console) -> None:
    """One line a step."""
    for step in passed:
        console.print(f"{step.outcome:<6}{step.name:<11}{step.seconds:>8.1f} s", highlight=False)


def _publish(settings: Settings, passed: list[Passed]) -> str:
    """The command by which the finished folder goes where this one would have brought it."""
    from ..contributing.corpora import corpus_folders
    from ..registry.index_place import index_to_ask

    (device,) = (step.facts["device"] for step in passed if step.name == "device")
    words = ["tchub", "publish", str(settings.output / "checkpoint")]
    words += [word for folder in corpus_folders(settings, device) for word in ("--corpus", str(folder))]
    words += ["--repo", settings.repo or "ORGANISATION/NAME"]
    if settings.index_repo != index_to_ask():
        words += ["--index-repo", settings.index_repo] if settings.index_repo else ["--no-index"]
    return shlex.join(words)
