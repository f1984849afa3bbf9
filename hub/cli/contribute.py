"""`tchub contribute`: from a machine to a checkpoint that others can use, step by step."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import device_options, index_options, output_options, threads_option
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..contributing.settings import Settings
    from ..contributing.walk import Passed

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
def command(
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
    from .asking import Terminal
    from .collect_progress import shown_collecting

    if options["corpora"] and options["data_licence"]:
        raise click.UsageError("--data-licence is of what is measured here; a --corpus says its own")
    facts = CardFacts(
        **{key: options.pop(key) for key in ("authors", "weights_licence", "data_licence", "name", "version")},
        limits=limits or None,
    )
    settings = Settings(output, networks=tuple(networks.split(",")), facts=facts, publish=not no_publish, **options)
    with shown_collecting(out, settings.programs) as tell:
        passed = contribute(settings, ask=Terminal.find(), again_from=again_from, note=out.note, progress=tell)
    result = {"output": str(output), "steps": [step.as_dict() for step in passed]}
    out.data(result, lambda console: draw(passed, console))
    if "published" not in passed[-1].facts:
        out.hint(_publish(settings, passed))


def draw(passed: list[Passed], console: Console) -> None:
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
