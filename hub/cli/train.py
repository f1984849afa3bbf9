"""`tchub train`, `distill` and `evaluate`: make checkpoints of corpora, and score them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...zoo.errors import TchubError
from .options import output_options, per_task_option
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ...zoo.adapt.knowledge_base import Beginning, DistillSettings, Grown
    from ...zoo.corpus import Corpus
    from ...zoo.models import Checkpoint
    from ...zoo.training import TrainConfig
    from ...zoo.training.fit import Fitted
    from .output import Output

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
def train_command(
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
    from .zoo import warn_without_licence

    torch.set_num_threads(threads)
    place = _place(torch_device)
    recipe = TrainConfig.find(config)
    goal, sources = _open_train(target, corpora)
    _check_folder_train(folder, resume)
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
        _save_train(fitted, folder)
        _tell(fitted, folder, out)
        warn_without_licence(fitted.checkpoint.config.lineage, out)
        out.hint(f"tchub evaluate {folder} --corpus {goal.path} --baselines")


def _open_train(target: Path | None, corpora: tuple[Path, ...]) -> tuple[Corpus, list[Corpus]]:
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


def _check_folder_train(folder: Path, resume: bool) -> None:
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


def _save_train(fitted: Fitted, folder: Path) -> None:
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
    out.data(result, lambda console: _draw_train(result, console))


def _draw_train(result: dict[str, Any], console: Console) -> None:
    scores = result["results"]["model"]
    console.print(
        f"{result['name']}@{result['version']}: {result['parameters']:,} parameters, "
        f"epoch {result['best_epoch'] + 1} of {result['epochs']} kept; on {result['split']}: "
        f"top-1 {scores['top1']:.4f}, top-5 {scores['top5']:.4f}, pairwise {scores['pairwise']:.4f}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"written to {result['path']}", highlight=False, soft_wrap=True)


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
def distill_command(
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
    from .zoo import warn_without_licence

    torch.set_num_threads(threads)
    start = _open_distill(kb)
    opened, known = ([Corpus.open(path) for path in paths] for paths in (corpora, judged))
    _check_folder_distill(folder, resume)
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
    _save_distill(grown, folder)
    result = _result(grown, folder)
    out.data(result, lambda console: draw(result, console))
    warn_without_licence(grown.checkpoint.config.lineage, out)
    out.hint(f"tchub adapt {shlex.quote(str(folder))} --device local --budget 10%")


def _open_distill(kb: str) -> Beginning:
    """The base of a name, a folder or `new:ARCH`."""
    from ...zoo.adapt.knowledge_base import Beginning
    from ...zoo.models import Checkpoint
    from ..api import load

    if kb.startswith(_NEW):
        return Beginning.new(kb.removeprefix(_NEW))
    return Beginning.of(Checkpoint.load(kb) if Path(kb).is_dir() else load(kb))


def _check_folder_distill(folder: Path, resume: bool) -> None:
    from ...zoo.adapt.knowledge_base.grow import has_run

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


def _save_distill(grown: Grown, folder: Path) -> None:
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


_PHASES = {"train": "first device", "learn": "column learns", "distill": "base learns"}


def progress(out: Output) -> Callable[[str, str, dict[str, Any]], None]:
    """A listener that writes a line an epoch, and one a device."""

    def hear(corpus: str, phase: str, facts: dict[str, Any]) -> None:
        out.note(f"{corpus}: {_done(facts) if phase == 'done' else _epoch(phase, facts)}")

    return hear


def _epoch(phase: str, entry: Mapping[str, float]) -> str:
    said = f"{_PHASES[phase]}, epoch {int(entry['epoch']) + 1}  loss {entry['loss']:.4f}"
    if "val_pairwise" in entry:
        said += f"  val pairwise {entry['val_pairwise']:.4f}"
    return f"{said}  {entry['seconds']:.1f} s"


def _done(device: Mapping[str, Any]) -> str:
    from ..text import score_text

    scores = ", ".join(f"{who} {score_text(row['pairwise'])}" for who, row in device["test"].items())
    gate = "" if device["gate"] is None else f", gate {device['gate']:.2f}"
    said = f"learnt {device['programs']:,} programs of {device['tasks']} tasks{gate}; test pairwise: {scores or '-'}"
    return f"{said}; warning: {device['warning']}" if device["warning"] else said


def draw(result: Mapping[str, Any], console: Console) -> None:
    """Every device: what the base knew of it when it was learnt, and what it knows now."""
    console.print(f"{result['name']}@{result['version']}: {result['parameters']:,} parameters", highlight=False)
    console.print(device_table(result["devices"]))
    for device in result["added"]:
        if device["warning"]:
            console.print(f"warning: {device['corpus']}: {device['warning']}", highlight=False, soft_wrap=True)
    console.print(f"written to {result['path']}", highlight=False, soft_wrap=True)


def device_table(devices: object) -> Table:
    """Of `metrics.json`: pairwise accuracy on the test tasks of every device, in the order of learning.

    What has not the shape of a device gets no row.
    """
    from rich.table import Table

    from ..registry.describe import as_object
    from ..registry.fields import is_number
    from ..text import score_text

    table = Table(box=None, pad_edge=False)
    table.add_column("  pairwise by device")
    for title in ("its column", "then", "now", "forgotten"):
        table.add_column(title, justify="right")
    for row in filter(None, map(as_object, devices if isinstance(devices, list) else ())):
        column, then, now = (as_object(row.get(key)).get("pairwise") for key in ("column", "learnt", "now"))
        lost = f"{then - now:+.3f}" if is_number(then) and is_number(now) else "-"
        table.add_row(f"  {row.get('corpus', '-')}", score_text(column), score_text(then), score_text(now), lost)
    return table


COLUMNS = {
    "top1": "top-1",
    "top5": "top-5",
    "mean_top1": "mean top-1",
    "mean_top5": "mean top-5",
    "pairwise": "pairwise",
}


@click.command("evaluate")
@click.argument("name_or_path")
@click.option("--corpus", "corpus_path", required=True, type=click.Path(path_type=Path), help="Corpus folder.")
@click.option(
    "--split", default="test", show_default=True, type=click.Choice(["test", "val", "train"]),
    help="Which tasks: test are those of the held-out networks.",
)  # fmt: skip
@click.option("--baselines", is_flag=True, help="Add random choice, XGBoost and 10% random data.")
@click.option(
    "--labels", default=0, metavar="N", type=click.IntRange(0),
    help="Also rank with N random programs of each task known, as a tilenet can; they do not count.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of the baselines and the labels.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads to use.")
@output_options
def evaluate_command(
    name_or_path: str,
    corpus_path: Path,
    split: str,
    baselines: bool,
    labels: int,
    seed: int,
    threads: int,
    out: Output,
) -> None:
    """Score a checkpoint on a corpus. NAME_OR_PATH is a name that `tchub list` shows or a folder.

    Top-1 and top-5 are those of TLP 6.1 and TCL equation 12, weighted by how often the networks hold a task;
    the means weigh tasks alike; pairwise is the share of pairs over 5% apart that are ordered rightly.
    The baselines learn from the same training tasks: XGBoost on TVM's PerStoreFeature (as in MetaSchedule; on
    primitives where the corpus cannot be replayed), and the checkpoint's own recipe on a tenth of the programs.
    They take minutes; features are cached. The corpus may be of any framework (see `tchub corpus import`).

    \b
    Examples:
      tchub evaluate tcl-epyc --corpus corpora/epyc
      tchub evaluate runs/tcl-epyc --corpus corpora/epyc --split val
      tchub evaluate tcl-epyc --corpus corpora/epyc --baselines --json
      tchub evaluate tilenet-v100 --corpus corpora/v100-ansor --labels 16
    """
    import torch

    from ...zoo.corpus import Corpus
    from ..publishing.evaluate import BASELINES, evaluate
    from ..registry import cache_root

    torch.set_num_threads(threads)
    corpus = Corpus.open(corpus_path)
    result = evaluate(
        _load(name_or_path),
        corpus,
        split,
        baselines=BASELINES if baselines else (),
        labels=labels,
        seed=seed,
        threads=threads,
        cache=cache_root().parent / "statements",
        note=out.note,
    )
    out.data(result, lambda console: _draw_evaluate(result, console))


def _load(name_or_path: str) -> Checkpoint:
    from ...zoo.models import Checkpoint
    from .zoo import find_folder

    return Checkpoint.load(find_folder(name_or_path))


def _draw_evaluate(result: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    title = f"{result['corpus']}, {result['split']}: {result['programs']} programs of {result['tasks']} tasks"
    console.print(title, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in COLUMNS.values():
        table.add_column(column, justify="right", no_wrap=True)
    rows = {scores.get("label", name): scores for name, scores in result["results"].items()}
    rows = {result["checkpoint"]: rows.pop("model")} | rows
    rows |= {f"given {number} programs": scores for number, scores in result.get("few_shot", {}).items()}
    for name, scores in rows.items():
        table.add_row(name, *(f"{scores[key]:.4f}" for key in COLUMNS))
    console.print(table)
