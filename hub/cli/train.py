"""`tchub train`: a recipe and a corpus become a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...zoo.errors import TchubError
from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ...zoo.training.fit import Fitted


class FolderInUseError(TchubError):
    """The output folder holds a run that was not asked to be resumed; fields: path."""


@click.command("train")
@click.argument("config")
@click.option("--corpus", "corpus_path", required=True, type=click.Path(path_type=Path), help="Corpus folder.")
@click.option("--out", "folder", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--name", help="Name of the checkpoint; ARCH-FAMILY unless given.")
@click.option("--version", default="0.1.0", show_default=True, help="Version of the checkpoint.")
@click.option("--seed", default=0, show_default=True, help="Decides weights, batches and programs kept.")
@click.option("--resume", is_flag=True, help="Continue the run that --out holds.")
@click.option(
    "--tasks-fraction", default=1.0, type=click.FloatRange(0, 1, min_open=True), show_default=True,
    help="Share of the training tasks, picked at random.",
)  # fmt: skip
@click.option(
    "--programs-fraction", default=1.0, type=click.FloatRange(0, 1, min_open=True), show_default=True,
    help="Share of each task's programs, picked at random.",
)  # fmt: skip
@click.option("--weights-licence", help="SPDX name of the licence you give the weights, kept in the config.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads for PyTorch.")
@output_options
def command(
    config: str,
    corpus_path: Path,
    folder: Path,
    name: str | None,
    version: str,
    seed: int,
    resume: bool,
    tasks_fraction: float,
    programs_fraction: float,
    weights_licence: str | None,
    threads: int,
    out: Output,
) -> None:
    """Train a cost model on a corpus. CONFIG is a TOML file or a recipe that ships (tcl, tcl-paper).

    Networks held out for testing (ResNet-50, MobileNet-V2, ResNeXt-50, BERT-tiny, BERT-base) take no part.
    A stopped run continues with --resume, to the same weights as one that was not stopped.

    \b
    Examples:
      tchub train tcl --corpus corpora/epyc --out runs/tcl-epyc
      tchub train tcl --corpus corpora/epyc --out runs/tcl-epyc --resume
      tchub train tcl --corpus corpora/epyc --out runs/ten --programs-fraction 0.1 --seed 1
    """
    import torch

    from ...zoo.corpus import Corpus
    from ...zoo.training import TrainConfig
    from ...zoo.training.fit import fit

    torch.set_num_threads(threads)
    recipe = TrainConfig.find(config)
    corpus = Corpus.open(corpus_path)
    _check_folder(folder, resume)
    fitted = fit(
        corpus,
        recipe,
        name=name,
        version=version,
        seed=seed,
        tasks_fraction=tasks_fraction,
        programs_fraction=programs_fraction,
        lineage={"base": None} | ({"weights_licence": weights_licence} if weights_licence else {}),
        command=f"tchub train {config} --corpus {corpus_path.name} --out DIR --version {version} --seed {seed}",
        resume_dir=folder,
        on_epoch=lambda entry: out.note(_progress(entry, recipe.epochs)),
    )
    _save(fitted, folder)
    result = {
        "path": str(folder),
        "name": fitted.checkpoint.config.name,
        "version": version,
        "parameters": fitted.checkpoint.model.parameter_count(),
        "epochs": len(fitted.result.history),
        "resumed_from": fitted.result.resumed_from,
        "best_epoch": fitted.result.best_epoch,
        **fitted.metrics,
    }
    out.data(result, lambda console: _draw(result, console))
    out.hint(f"tchub evaluate {folder} --corpus {corpus_path} --baselines")


def _check_folder(folder: Path, resume: bool) -> None:
    from ...zoo.training.state import STATE_FILE

    if (folder / STATE_FILE).is_file() and not resume:
        raise FolderInUseError(
            f"{folder} holds a run already",
            remedy="add --resume to continue it, or give another --out",
            path=str(folder),
        )


def _save(fitted: Fitted, folder: Path) -> None:
    from ...zoo.models.files import write_folder

    write_folder(folder, {"metrics.json": (json.dumps(fitted.metrics, indent=2) + "\n").encode()})
    fitted.checkpoint.save(folder)


def _progress(entry: dict[str, float], epochs: int) -> str:
    said = f"epoch {int(entry['epoch']) + 1}/{epochs}  loss {entry['loss']:.4f}"
    if "val_pairwise" in entry:
        said += f"  val pairwise {entry['val_pairwise']:.4f}  top-1 {entry['val_mean_top1']:.4f}"
    return f"{said}  {entry['seconds']:.1f} s"


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
