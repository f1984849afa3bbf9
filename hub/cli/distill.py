"""`tchub distill`: a knowledge base learns one device or several, and keeps those it knows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .distill_text import draw, progress
from .options import output_options, per_task_option
from .output import Output

if TYPE_CHECKING:
    from ...zoo.adapt.knowledge_base import Beginning, DistillSettings, Grown

_PATH: Any = click.Path(path_type=Path)
_NEW = "new:"
_FIRST_VERSION = "1.0.0"


@click.command("distill")
@click.argument("kb")
@click.option("--corpus", "corpora", multiple=True, required=True, type=_PATH, help="Corpus to learn; may be repeated.")
@click.option("--out", "folder", required=True, type=_PATH, help="Folder to write.")
@click.option(
    "--judge", "judged", multiple=True, type=_PATH,
    help="Corpus of a device that the base knows already: its test tasks tell what is forgotten. May be repeated.",
)  # fmt: skip
@click.option("--name", help="Name of the result; the base's own, or ARCH-kb-cpu or ARCH-kb-gpu.")
@click.option("--version", help="Version of the result; the base's next minor one, or 1.0.0.")
@click.option("--keep-order", is_flag=True, help="Learn the corpora in the order given.")
@click.option(
    "--epochs", default=0, type=click.IntRange(0),
    help="Passes of each phase; 0: as many as it takes. The first device of a new base has one phase, with the passes "
    "of both.",
)  # fmt: skip
@per_task_option("--per-task", 200)
@click.option("--ewc/--no-ewc", default=True, show_default=True, help="Hold back what earlier devices depend on.")
@click.option("--recipe", default="", help="Recipe (a name, or a file) whose loss and batches the phases have.")
@click.option(
    "--schedule", default="tchub", show_default=True, type=click.Choice(["tchub", "paper"]),
    help="Losses, rates, batches and epochs: tchub's, by the recipe, or those of TCL's paper: 100 epochs, divided over "
    "the devices of this run and their phases.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Decides weights, batches and programs taken.")
@click.option("--resume", is_flag=True, help="Continue the run that --out holds.")
@click.option("--weights-licence", help="SPDX name of the licence you give the weights of a new base.")
@click.option("--authors", help="Of a new base, for its card.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads for PyTorch.")
@output_options
def command(
    kb: str,
    corpora: tuple[Path, ...],
    folder: Path,
    judged: tuple[Path, ...],
    name: str | None,
    version: str | None,
    keep_order: bool,
    epochs: int,
    per_task: int,
    ewc: bool,
    recipe: str,
    schedule: str,
    seed: int,
    resume: bool,
    weights_licence: str | None,
    authors: str | None,
    threads: int,
    out: Output,
) -> None:
    """Add devices to a knowledge base. KB is a name of `tchub list`, a folder, or new:ARCH to begin one.

    A knowledge base is one checkpoint that has learnt several devices, and is as large after ten as after one. Each
    corpus is learnt in two phases (TCL, section 6): a column learns the device beside the frozen base, then the base
    learns from the device's labels and the column, held back where earlier devices depend on its weights. The last
    corpus is learnt last, the others before it, the one most unlike it first; --keep-order takes them as they come.
    No test task of any device takes part. A stopped run continues with --resume.

    \b
    Examples:
      tchub distill new:tilenet --corpus corpora/v100 --corpus corpora/k80 --out kb --weights-licence Apache-2.0
      tchub distill tilenet-kb-gpu --corpus corpora/rtx4090 --out kb-with-mine
      tchub distill kb --corpus corpora/mi50 --judge corpora/v100 --judge corpora/k80 --out kb-2
      tchub distill tilenet-kb-cpu --corpus corpora/mine --out kb-with-mine --resume --json
    """
    import torch

    from ...zoo.adapt.knowledge_base import DistillSettings, grow_base
    from ...zoo.corpus import Corpus
    from ...zoo.training.inputs import StatementStore
    from ..registry import cache_root
    from .summary import warn_without_licence

    torch.set_num_threads(threads)
    start = _open(kb)
    opened, known = ([Corpus.open(path) for path in paths] for paths in (corpora, judged))
    _check_folder(folder, resume)
    settings = DistillSettings(seed, epochs, per_task, ewc, keep_order, recipe, schedule)
    title = _title(start, kb, opened, name, version, settings, {"weights_licence": weights_licence, "authors": authors})
    grown = grow_base(
        start,
        opened,
        folder,
        title,
        settings,
        judged=known,
        store=StatementStore(cache_root().parent / "statements", workers=threads),
        on_event=progress(out),
    )
    _save(grown, folder)
    result = _result(grown, folder)
    out.data(result, lambda console: draw(result, console))
    warn_without_licence(grown.checkpoint.config.lineage, out)
    out.hint(f"tchub adapt {shlex.quote(str(folder))} --device local --budget 10%")


def _open(kb: str) -> Beginning:
    """The base of a name, a folder or `new:ARCH`."""
    from ...zoo.adapt.knowledge_base import Beginning
    from ...zoo.models import Checkpoint
    from ..api import load

    if kb.startswith(_NEW):
        return Beginning.new(kb.removeprefix(_NEW))
    return Beginning.of(Checkpoint.load(kb) if Path(kb).is_dir() else load(kb))


def _check_folder(folder: Path, resume: bool) -> None:
    from ...zoo.adapt.knowledge_base.grow import has_run
    from .train import FolderInUseError

    if has_run(folder) and not resume:
        raise FolderInUseError(
            f"{folder} holds a run already",
            remedy="add --resume to continue it, or give another --out",
            path=str(folder),
        )


def _title(
    start: Beginning,
    kb: str,
    corpora: list[Any],
    name: str | None,
    version: str | None,
    settings: DistillSettings,
    lineage: dict[str, str | None],
) -> Any:
    """Name, version and the command that makes the same again."""
    from ...zoo.adapt.knowledge_base.record import Title
    from ...zoo.training.read import corpus_device
    from ..registry.names import CheckpointName, Version

    if start.checkpoint is not None:
        config = start.checkpoint.config
        name = name or config.name
        version = version or str(Version.parse(config.version).next_minor())
        kb = f"{config.name}@{config.version}"
    name = name or f"{start.arch}-kb-{corpus_device(corpora[0]).kind}"
    chosen = CheckpointName.parse(f"{name}@{version or _FIRST_VERSION}")
    words = [f"--corpus {shlex.quote(corpus.path.resolve().name)}" for corpus in corpora]
    words += [f"--{key} {value}" for key, value in (("epochs", settings.epochs), ("recipe", settings.recipe)) if value]
    words += ["--keep-order"] * settings.keep_order + ["--no-ewc"] * (not settings.ewc)
    words += ["--schedule paper"] * (settings.schedule == "paper")
    command = (
        f"tchub distill {kb} {' '.join(words)} --per-task {settings.per_task} --out DIR --name {chosen.name} "
        f"--version {chosen.version} --seed {settings.seed}"
    )
    return Title(chosen.name, str(chosen.version), command, {k: v for k, v in lineage.items() if v})


def _save(grown: Grown, folder: Path) -> None:
    """Checkpoint, scores and card; the config last, since it makes the folder a checkpoint."""
    import json

    from ...cards import render_card
    from ...zoo.models.files import write_folder
    from ...zoo.plain_json import json_file

    metrics = json_file(grown.metrics)
    card = render_card(json.loads(grown.checkpoint.config.to_json()), json.loads(metrics))
    write_folder(folder, {"metrics.json": metrics, "README.md": card.encode()})
    grown.checkpoint.save(folder)


def _result(grown: Grown, folder: Path) -> dict[str, Any]:
    config = grown.checkpoint.config
    return {
        "path": str(folder),
        "name": config.name,
        "version": config.version,
        "base": config.lineage.get("base"),
        "parameters": grown.checkpoint.model.parameter_count(),
        "added": [device.as_dict() for device in grown.added],
        **grown.metrics,
    }
