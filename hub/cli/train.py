"""`tchub train`: a recipe and one corpus or several become a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...zoo.errors import TchubError
from .options import output_options, per_task_option
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ...zoo.corpus import Corpus
    from ...zoo.training import TrainConfig
    from ...zoo.training.fit import Fitted

_PATH: Any = click.Path(path_type=Path)


class FolderInUseError(TchubError):
    """The output folder holds a run that was not asked to be resumed; fields: path."""


class NoAcceleratorError(TchubError):
    """PyTorch finds no GPU here."""


@click.command("train")
@click.argument("config")
@click.option(
    "--corpus", "corpora", multiple=True, type=_PATH, help="Corpus to learn from, of any framework; may be repeated."
)
@click.option("--target", type=_PATH, help="Corpus whose test tasks judge; the first --corpus unless given.")
@click.option("--out", "folder", required=True, type=_PATH, help="Folder to write.")
@click.option("--init", help="Checkpoint whose weights are the start: a folder, or a name of `tchub list`.")
@click.option("--name", help="Name of the checkpoint; ARCH-FAMILY unless given.")
@click.option("--version", default="0.1.0", show_default=True, help="Version of the checkpoint.")
@click.option("--seed", default=0, show_default=True, help="Decides weights, batches and programs kept.")
@click.option("--resume", is_flag=True, help="Continue the run that --out holds.")
@click.option(
    "--tasks-fraction", default=1.0, type=click.FloatRange(0, 1, min_open=True), show_default=True,
    help="Share of the target's training tasks, picked at random.",
)  # fmt: skip
@click.option(
    "--programs-fraction", default=1.0, type=click.FloatRange(0, 1), show_default=True,
    help="Share of the programs of each of them, picked at random; 0 learns from the other corpora alone.",
)  # fmt: skip
@per_task_option("--programs-per-task", 0)
@click.option("--weights-licence", help="SPDX name of the licence you give the weights, kept in the config.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads for PyTorch.")
@click.option(
    "--torch-device", default="auto", type=click.Choice(["auto", "cpu", "cuda"]), show_default=True,
    help="Where to train; auto takes a GPU where there is one.",
)  # fmt: skip
@click.option("--tensorboard", type=_PATH, help="Folder for TensorBoard's curves, beside curve.csv.")
@output_options
def command(
    config: str,
    corpora: tuple[Path, ...],
    target: Path | None,
    folder: Path,
    init: str | None,
    name: str | None,
    version: str,
    seed: int,
    resume: bool,
    tasks_fraction: float,
    programs_fraction: float,
    programs_per_task: int,
    weights_licence: str | None,
    threads: int,
    torch_device: str,
    tensorboard: Path | None,
    out: Output,
) -> None:
    """Train a cost model on measured programs. CONFIG is a TOML or YAML file, or a recipe that ships (tcl, tlp, ...).

    A corpus is what `tchub collect` measured here, or what `tchub corpus import` made of others' logs of Ansor,
    AutoTVM or MetaSchedule; one model may learn from all of them. No corpus's programs of a test task of any corpus
    take part, whatever framework and device they are of.
    Several processes train one model under `torchrun` or `accelerate launch`.
    A stopped run continues with --resume, to the same weights as one that was not stopped.

    \b
    Examples:
      tchub train tcl --corpus corpora/epyc --out runs/tcl-epyc
      tchub train tcl --corpus corpora/epyc --out runs/tcl-epyc --resume
      tchub train tilenet --corpus corpora/v100-ansor --corpus corpora/a100-metaschedule --out runs/tilenet-v100
      tchub train tlp --target corpora/k80 --corpus corpora/v100 --programs-fraction 0.1 --out runs/tlp-k80
      torchrun --nproc-per-node 2 -m tchub.hub.cli train tcl --corpus corpora/epyc --out runs/two
    """
    import torch

    from ...zoo.training import TrainConfig
    from ...zoo.training.distributed import World
    from ...zoo.training.fit import fit
    from ...zoo.training.inputs import StatementStore
    from ..registry import cache_root
    from .summary import warn_without_licence

    torch.set_num_threads(threads)
    place = _place(torch_device)
    recipe = TrainConfig.find(config)
    goal, sources = _open(target, corpora)
    _check_folder(folder, resume)
    given = [f"--corpus {c.path.name}" for c in (goal, *sources)] + ([f"--init {init}"] if init else [])
    given += [f"--tasks-fraction {tasks_fraction:g}"] * (tasks_fraction < 1)
    given += [f"--programs-fraction {programs_fraction:g}"] * (programs_fraction < 1)
    given += [f"--programs-per-task {programs_per_task}"] * (programs_per_task > 0)
    world = World.join(cuda=place == "cuda")
    try:
        fitted = fit(
            goal,
            recipe,
            sources=sources,
            init=_checkpoint(init) if init else None,
            name=name,
            version=version,
            seed=seed,
            tasks_fraction=tasks_fraction,
            programs_fraction=programs_fraction,
            programs_per_task=programs_per_task,
            lineage={"base": init} | ({"weights_licence": weights_licence} if weights_licence else {}),
            command=f"tchub train {config} {' '.join(given)} --out DIR --version {version} --seed {seed}",
            resume_dir=folder,
            on_epoch=_listener(recipe, tensorboard, out) if world.rank == 0 else None,
            torch_device=f"cuda:{world.local}" if place == "cuda" else place,
            world=world,
            store=StatementStore(cache_root().parent / "statements", workers=threads),
        )
    finally:
        world.leave()
    if world.rank == 0:
        _save(fitted, folder)
        _tell(fitted, folder, out)
        warn_without_licence(fitted.checkpoint.config.lineage, out)
        out.hint(f"tchub evaluate {folder} --corpus {goal.path} --baselines")


def _open(target: Path | None, corpora: tuple[Path, ...]) -> tuple[Corpus, list[Corpus]]:
    """The corpus that judges, and the others."""
    from ...zoo.corpus import Corpus

    given = (target, *corpora) if target else corpora
    paths = list(dict.fromkeys(given))
    if not paths:
        raise click.UsageError("give a --corpus to learn from")
    opened = [Corpus.open(path) for path in paths]
    return opened[0], opened[1:]


def _place(choice: str) -> str:
    import torch

    found = torch.cuda.is_available()
    if choice == "cuda" and not found:
        raise NoAcceleratorError(
            "PyTorch finds no GPU here", remedy="use --torch-device cpu, or install a PyTorch with CUDA"
        )
    return "cuda" if found and choice != "cpu" else "cpu"


def _checkpoint(name: str) -> Any:
    from ... import hub
    from ...zoo.models import Checkpoint

    return Checkpoint.load(name) if Path(name).is_dir() else hub.load(name)


def _check_folder(folder: Path, resume: bool) -> None:
    from ...zoo.training.state import has_state

    if has_state(folder) and not resume:
        raise FolderInUseError(
            f"{folder} holds a run already",
            remedy="add --resume to continue it, or give another --out",
            path=str(folder),
        )


def _listener(recipe: TrainConfig, tensorboard: Path | None, out: Output) -> Callable[[dict[str, float]], None]:
    from ...zoo.training.curves import tensorboard_curve

    draw = tensorboard_curve(tensorboard) if tensorboard else None

    def hear(entry: dict[str, float]) -> None:
        out.note(_progress(entry, recipe.epochs))
        if draw:
            draw(entry)

    return hear


def _save(fitted: Fitted, folder: Path) -> None:
    from ...zoo.models.files import write_folder
    from ...zoo.plain_json import json_file

    write_folder(folder, {"metrics.json": json_file(fitted.metrics)})
    fitted.checkpoint.save(folder)


def _progress(entry: dict[str, float], epochs: int) -> str:
    said = f"epoch {int(entry['epoch']) + 1}/{epochs}  loss {entry['loss']:.4f}"
    if "val_pairwise" in entry:
        said += f"  val pairwise {entry['val_pairwise']:.4f}  top-1 {entry['val_mean_top1']:.4f}"
    return f"{said}  {entry['seconds']:.1f} s"


def _tell(fitted: Fitted, folder: Path, out: Output) -> None:
    result = {
        "path": str(folder),
        "name": fitted.checkpoint.config.name,
        "version": fitted.checkpoint.config.version,
        "parameters": fitted.checkpoint.model.parameter_count(),
        "epochs": len(fitted.result.history),
        "resumed_from": fitted.result.resumed_from,
        "best_epoch": fitted.result.best_epoch,
        **fitted.metrics,
    }
    out.data(result, lambda console: _draw(result, console))


def _draw(result: dict[str, Any], console: Console) -> None:
    scores = result["results"]["model"]
    console.print(
        f"{result['name']}@{result['version']}: {result['parameters']:,} parameters, "
        f"epoch {result['best_epoch'] + 1} of {result['epochs']} kept; on {result['split']}: "
        f"top-1 {scores['top1']:.4f}, top-5 {scores['top5']:.4f}, pairwise {scores['pairwise']:.4f}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"written to {result['path']}", highlight=False, soft_wrap=True)
