"""`tchub check`, `publish` and `contribute`: bring a checkpoint to others."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..text import Part
from . import options as opt
from .output import Output, Prompt

if TYPE_CHECKING:
    from ..publishing.check import CheckReport
    from ..publishing.contribute import Contribution, ContributionConfig
    from ..publishing.publish import PublishResult

_OUTCOMES = {"ok": "ok", "failed": "FAIL", "not-checked": "open"}
_FACTS = ("authors", "weights_licence", "data_licence", "name", "version")

_judging_corpora = opt.corpora_option("A corpus that it learnt from or is judged by, in a folder of its name.")
_evaluate_option = click.option(
    "--evaluate/--no-evaluate", default=True, help="Evaluate the scores again, for which the corpora are needed."
)


@opt.command("check")
@click.argument("name_or_path")
@_judging_corpora
@_evaluate_option
@opt.torch_threads_option
def check_command(name_or_path: str, output: Output, **options: Any) -> None:
    """Check everything that a reviewer looks at. NAME_OR_PATH is a folder, or a name that `tchub list` shows.

    The files and their contents, whether the weights load, name and version, the device, the card and its facts, the
    licences, the scores; with the corpora also whether the scores come out again, and whether what was learnt can be
    had without a test task. Exit code 1 when something is wrong, or not checked and not left out.

    \b
    Examples:
      tchub check runs/tilenet-epyc --corpus corpora/epyc-turin
      tchub check tilenet-epyc --no-evaluate
    """
    from ..publishing.check import check
    from ..registry import find_checkpoint

    report = check(find_checkpoint(name_or_path), note=output.note, **options)
    output.data(report.as_dict(), _findings(report))
    if not report.ok:
        raise click.exceptions.Exit(1)
    corpora = opt.given_again(only=["corpora"])
    parts = ["tchub publish", shlex.quote(name_or_path), *([corpora] if corpora else []), "--repo ORGANISATION/NAME"]
    output.hint(" ".join(parts))


def _findings(report: CheckReport) -> Iterator[Part]:
    """Show one line a finding, the remedy of what is wrong under it."""
    for finding in report.findings:
        yield f"{_OUTCOMES[finding.outcome]:<6}{finding.name:<10}{finding.detail}"
        if finding.outcome != "ok" and finding.remedy:
            yield f"{'':<16}-> {finding.remedy}"


@opt.command("publish")
@click.argument("name_or_path")
@click.option("--repo", required=True, metavar="ORG/NAME", help="The Hub repository; made when it is not there.")
@click.option("--version", metavar="X.Y.Z", help="Publish it as this version. [default: its config's]")
@click.option("--private", is_flag=True, help="Only in a private repository; by default no index is asked.")
@click.option("--create-pr", is_flag=True, help="Propose it by a pull request, where you may not write.")
@opt.index_options
@_judging_corpora
@_evaluate_option
@opt.torch_threads_option
@click.option("--dry-run", is_flag=True, help="Check it, and show what would be uploaded.")
def publish_command(name_or_path: str, repo: str, output: Output, **options: Any) -> None:
    """Publish a checkpoint on the Hugging Face Hub. NAME_OR_PATH is a folder, or a name that `tchub list` shows.

    First everything is checked, as by `tchub check`, and the card is written from config.json and metrics.json. Then
    all files go up as one commit, which is tagged vX.Y.Z, and the index is asked to list it. A version never changes;
    an interrupted run is finished by the same command. The token is that of `hf auth login`, or HF_TOKEN.

    \b
    Examples:
      tchub publish runs/tilenet-epyc --repo me/tilenet-epyc --corpus corpora/epyc-turin --dry-run
      tchub publish runs/tilenet-epyc --repo me/tilenet-epyc --corpus corpora/epyc-turin
    """
    from ..publishing.publish import PublishConfig, publish
    from ..registry import find_checkpoint

    corpora, config = options.pop("corpora"), PublishConfig(**options)
    result = publish(find_checkpoint(name_or_path), repo, corpora=corpora, config=config, note=output.note)
    output.data(result, _published(result))
    output.hint(_after_publishing(result))


def _published(result: PublishResult) -> Iterator[Part]:
    yield f"{result.outcome}: {result.name}@{result.version} at {result.url}"
    yield from (f"  {key}: {value}" for key in ("commit", "tag") if (value := getattr(result, key)))
    if result.index:
        yield f"  index: {result.index.url or f'{result.index.repo} lists it already'}"
    yield from (f"  {name}  sha256 {sha256}" for name, sha256 in sorted(result.files.items()))


def _after_publishing(result: PublishResult) -> str:
    if result.outcome == "dry-run":
        return opt.given_again(without=["dry_run"])
    if result.outcome == "proposed":
        later = f"# tags it, by an owner of {result.repo}, once {result.url} is merged"
        return f"{opt.given_again(without=['create_pr'])}   {later}"
    if result.index is None:
        return f"{opt.given_again(without=['no_index'])} --index-repo ORG/NAME   # so that tchub pull finds it"
    merged = f"   # once {result.index.url} is merged" if result.index.url else ""
    return f"tchub index refresh && tchub pull {result.name}@{result.version}{merged}"


@opt.command("contribute")
@opt.device_options
@opt.out_option("Folder of all that is made.", "contribution")
@click.option("--workload", default="full", help="Suites, networks, operators, with commas.")
@click.option("--programs", default=12000, type=click.IntRange(8), help="Programs to measure.")
@opt.threads_option
@opt.corpora_option("Learn from this corpus and measure nothing; the first one judges.")
@click.option("--recipe", help="How to train: a recipe that ships, or a file. [default: the checkpoint's, or tilenet]")
@click.option("--checkpoint", metavar="NAME", help="Start from the weights of this checkpoint.")
@click.option("--seed", default=0, help="Seed of the candidates and the training.")
@click.option("--authors", help="Who made it, as it is to be cited.")
@click.option("--weights-licence", metavar="SPDX", help="Licence that you give the weights. There is no default.")
@click.option("--data-licence", metavar="SPDX", help="Licence of what is measured here. There is no default.")
@click.option("--limit", "limits", multiple=True, help="What users should know that no number tells. Repeatable.")
@click.option("--name", help="Name of the checkpoint. [default: ARCH-FAMILY]")
@click.option("--version", help="Version of the checkpoint. [default: the next one that nobody has]")
@click.option("--repo", metavar="ORG/NAME", help="The Hub repository to publish in.")
@opt.index_options
@click.option("--publish/--no-publish", default=True, help="--no-publish: stop with a folder ready to be published.")
@click.option("--yes", is_flag=True, help="Publish without asking.")
def contribute_command(out: Path, workload: str, limits: tuple[str, ...], output: Output, **options: Any) -> None:
    """Measure, train, evaluate, describe, check and publish a checkpoint for a device.

    Nine steps: preflight, device, facts, collect, train, evaluate, card, check, publish. What is finished is kept in
    the output folder: the same command goes on where it stopped, also after a kill; with other options it does again
    what depends on them. Nothing leaves the machine before you agree; then it is published, and the index is asked to
    list it, as by `tchub publish`. Facts that no measurement tells are asked for, unless the options give them. The
    default, 12,000 programs of all reference networks, takes hours.

    \b
    Examples:
      tchub contribute --device local --no-publish
      tchub contribute --device local --workload reference,bert-tiny --programs 2000 --out mine
      tchub contribute --corpus corpora/epyc-turin --checkpoint tilenet-xeon --repo me/tilenet-epyc
    """
    from ..publishing.contribute import ContributionConfig, contribute
    from ..publishing.contribute_facts import CardFacts
    from .progress import shown_progress

    if options["corpora"] and options["data_licence"]:
        raise click.UsageError("--data-licence is of what is measured here; a --corpus says its own")
    facts = CardFacts(**{key: options.pop(key) for key in _FACTS}, limits=limits or None)
    config = ContributionConfig(out, workload=tuple(workload.split(",")), facts=facts, **options)
    with shown_progress(output) as progress:
        finished = contribute(config, ask=Prompt.find(), note=output.note, progress=progress.count)
    output.data(finished, f"{finished.name}@{finished.version} in {finished.folder}")
    if finished.published is None:
        output.hint(_publish(config, finished))


def _publish(config: ContributionConfig, finished: Contribution) -> str:
    """Return the command by which the finished folder goes where this one would have brought it."""
    from ..registry.trust import index_to_ask

    parts = ["tchub", "publish", finished.folder]
    parts += [word for folder in finished.corpora for word in ("--corpus", folder)]
    parts += ["--repo", config.repo or "ORGANISATION/NAME"]
    if config.index_repo != index_to_ask():
        parts += ["--index-repo", config.index_repo] if config.index_repo else ["--no-index"]
    return shlex.join(parts)
