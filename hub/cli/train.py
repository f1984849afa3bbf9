"""`tchub train`, `distill` and `evaluate`: make a checkpoint of corpora, teach a knowledge base, and score one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...zoo.files import write_files
from ...zoo.plain_json import json_file
from ..registry import CheckpointName, Version, cache_root, find_checkpoint
from ..registry.entry import as_object
from ..registry.listing import TITLES
from ..text import Column, Part, score_text
from . import options as opt
from .output import Output

if TYPE_CHECKING:
    from ...zoo.training.fit import FitResult

_REPRODUCED = ("corpora", "checkpoint", "programs_fraction", "per_task")
_NEW = "new:"
_DISTILLED = ("corpora", "keep_order", "epochs", "per_task", "ewc", "recipe", "schedule")
_PHASES = {"train": "first device", "learn": "column learns", "distill": "base learns"}

resume_option = click.option("--resume", is_flag=True, help="Continue the run that --out holds.")
licence_option = click.option("--weights-licence", metavar="SPDX", help="Licence that you give the weights.")


@opt.command("train")
@click.argument("config")
@opt.corpora_option("Corpus to learn from, of any framework; the first one's test tasks judge.", required=True)
@opt.out_option("Folder to write.")
@click.option("--checkpoint", metavar="NAME", help="Fine-tune this checkpoint; no better, and it is kept.")
@click.option("--name", help="Name of the checkpoint. [default: ARCH-FAMILY]")
@click.option("--version", default="0.1.0", help="Version of the checkpoint.")
@click.option("--seed", default=0, help="Decides weights, batches and programs kept.")
@resume_option
@click.option(
    "--programs-fraction", default=1.0, type=click.FloatRange(0, 1),
    help="Share of the first corpus's training programs, picked at random; 0 learns from the other corpora alone.",
)  # fmt: skip
@click.option("--per-task", default=0, type=click.IntRange(0), help="Programs of a task at most; 0: all.")
@licence_option
@opt.torch_threads_option
def train_command(
    config: str, corpora: tuple[Path, ...], out: Path, checkpoint: str | None, name: str | None, version: str,
    seed: int, resume: bool, programs_fraction: float, per_task: int, weights_licence: str | None, threads: int,
    output: Output,
) -> None:  # fmt: skip
    """Train a cost model on measured programs. CONFIG is a TOML or YAML file, or a recipe that ships (tcl, tlp, ...).

    A corpus is what `tchub collect` measured here, or what `tchub corpus import` made of others' logs of Ansor,
    AutoTVM or MetaSchedule; one model may learn from all of them. No corpus's programs of a test task of any corpus
    take part, whatever framework and device they are of. Several processes train one model under `torchrun` or
    `accelerate launch`. A stopped run continues with --resume, to the same weights as one that was not stopped. Of
    programs of CPUs in MetaSchedule the fastest schedule of each task is kept in schedules.json: `tchub tune` with this
    checkpoint begins similar tasks with them.

    \b
    Examples:
      tchub train tcl --corpus corpora/epyc --out runs/tcl-epyc
      tchub train tcl --corpus corpora/epyc --out runs/tcl-epyc --resume
      tchub train tilenet --corpus corpora/v100-ansor --corpus corpora/a100-metaschedule --out runs/tilenet-v100
      torchrun --nproc-per-node 2 -m tchub.hub.cli train tcl --corpus corpora/epyc --out runs/two
    """
    import torch

    from ...zoo.corpus import Corpus
    from ...zoo.models import Checkpoint
    from ...zoo.training import TrainConfig
    from ...zoo.training.distributed import World
    from ...zoo.training.fit import CheckpointFacts, train_checkpoint
    from ...zoo.training.programs import Share, StatementStore
    from ..search.schedules import brought

    recipe = TrainConfig.find(config)
    opened = [Corpus.open(path) for path in dict.fromkeys(corpora)]
    check_folder(out, resume)
    given = opt.given_again(only=_REPRODUCED, folders_by_name=True)
    share = Share(programs_fraction, per_task, seed)
    store = StatementStore(cache_root().parent / "statements", workers=threads)
    learnt = opened if programs_fraction else opened[1:]
    files, schedules = brought(learnt[::-1])  # the first corpus's device goes before the others
    lineage = {"base": checkpoint} | schedules | ({"weights_licence": weights_licence} if weights_licence else {})
    again = f"tchub train {config} {given} --out DIR --version {version} --seed {seed}"
    init = Checkpoint.load(find_checkpoint(checkpoint)) if checkpoint else None
    facts = CheckpointFacts(name, version, lineage, again)
    world = World.join(cuda=torch.cuda.is_available())
    try:
        fitted = train_checkpoint(opened, recipe, out, share, store, output.note, world, files, init=init, facts=facts)
    finally:
        world.leave()
    if world.rank == 0:
        _show_fit(fitted, out, output)
        output.hint(f"tchub evaluate {out} --corpus {opened[0].path}")


def check_folder(folder: Path, resume: bool) -> None:
    """Raise TrainingError where the folder holds a run that is not to be continued."""
    from ...zoo.adapt.continual.knowledge_base import has_run
    from ...zoo.training import TrainingError
    from ...zoo.training.state import has_state

    if (has_state(folder) or has_run(folder)) and not resume:
        raise TrainingError(
            f"{folder} holds a run already",
            remedy="add --resume to continue it, or give another --out",
            path=str(folder),
        )


def _show_fit(fitted: FitResult, folder: Path, output: Output) -> None:
    config, epochs, best = fitted.checkpoint.config, len(fitted.result.history), fitted.result.best_epoch
    parameters, scores = fitted.checkpoint.model.parameter_count(), fitted.metrics["results"]["model"]
    untrusted = sorted(key for key, row in config.trust.items() if not row.trusted and "*" not in key)
    result = {"path": folder, "name": config.name, "version": config.version, "parameters": parameters}
    result |= {"epochs": epochs, "resumed_from": fitted.result.resumed_from, "best_epoch": best, "untrusted": untrusted}
    kept = f"epoch {best + 1} of {epochs}" if best >= 0 else "the start, which no epoch outranks on validation tasks,"
    shown = ", ".join(f"{TITLES[key]} {scores[key]:.4f}" for key in ("top1", "top5", "pairwise"))
    output.data(
        result | fitted.metrics,
        f"{config.name}@{config.version}: {parameters:,} parameters, {kept} kept; "
        f"on {fitted.metrics['split']}: {shown}\nwritten to {folder}",
    )
    if untrusted:
        output.note(
            f"warning: validation does not show that it ranks {', '.join(untrusted)} better than chance: its "
            "scores count for nothing there; to change that, measure more tasks of the class"
        )
    warn_without_licence(config.lineage, output)


def warn_without_licence(lineage: Mapping[str, Any], output: Output) -> None:
    """Warn that a checkpoint without a licence of its weights cannot be published."""
    if not lineage.get("weights_licence"):
        again = "run the same command with --resume --weights-licence SPDX"
        output.note(f"warning: the card names no licence of the weights; to name one, {again}")


@opt.command("distill")
@click.argument("kb")
@opt.corpora_option("Corpus to learn.", required=True)
@opt.out_option("Folder to write.")
@click.option(
    "--judge", "judged", multiple=True, type=opt.PATH, metavar="DIR",
    help="Corpus of a device that the base knows already: its test tasks show what is forgotten. Repeatable.",
)  # fmt: skip
@click.option("--name", help="Name of the result. [default: the base's own, or ARCH-kb-cpu or ARCH-kb-gpu]")
@click.option("--version", help="Version of the result. [default: the base's next minor one, or 1.0.0]")
@click.option("--keep-order", is_flag=True, help="Learn the corpora in the order given.")
@click.option(
    "--epochs", default=0, type=click.IntRange(0),
    help="Passes of each phase; 0: as many as it takes. The first device of a new base has one phase, with the passes "
    "of both.",
)  # fmt: skip
@click.option(
    "--per-task", default=200, type=click.IntRange(0), metavar="N", help="Programs of a task at most; 0: all."
)
@click.option("--ewc/--no-ewc", default=True, help="Hold back what earlier devices depend on.")
@click.option("--recipe", help="Recipe (a name, or a file) whose loss and batches the phases have.")
@click.option(
    "--schedule", default="tchub", type=click.Choice(["tchub", "paper"]),
    help="Losses, rates, batches and epochs: tchub's, by the recipe, or those of TCL's paper: 100 epochs, divided over "
    "the devices of this run and their phases.",
)  # fmt: skip
@click.option("--seed", default=0, help="Decides weights, batches and programs taken.")
@resume_option
@licence_option
@click.option("--authors", help="Authors of a new base, for its card.")
@opt.torch_threads_option
def distill_command(
    kb: str, corpora: tuple[Path, ...], out: Path, judged: tuple[Path, ...], name: str | None, version: str | None,
    resume: bool, weights_licence: str | None, authors: str | None, threads: int, output: Output, **options: Any,
) -> None:  # fmt: skip
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
    """
    from ...cards import render_card
    from ...zoo.adapt.continual import DistillConfig, grow_base
    from ...zoo.corpus import Corpus
    from ...zoo.models import Checkpoint
    from ...zoo.training.fit import CheckpointFacts
    from ...zoo.training.programs import StatementStore, corpus_device

    new = kb.startswith(_NEW)
    start = kb.removeprefix(_NEW) if new else Checkpoint.load(find_checkpoint(kb))
    opened, known = ([Corpus.open(path) for path in paths] for paths in (corpora, judged))
    check_folder(out, resume)
    lineage = {"weights_licence": weights_licence, "authors": authors}
    lineage = {key: value for key, value in lineage.items() if value}
    if isinstance(start, str):
        name = name or f"{start}-kb-{corpus_device(opened[0]).kind}"
    else:
        name, kb = name or start.config.name, f"{start.config.name}@{start.config.version}"
        version = version or str(Version.parse(start.config.version).next_minor())
    chosen = CheckpointName.parse(f"{name}@{version or '1.0.0'}")
    name, version = chosen.name, str(chosen.version)
    again = opt.given_again(only=_DISTILLED, folders_by_name=True)
    command = f"tchub distill {kb} {again} --out DIR --name {name} --version {version} --seed {options['seed']}"
    grown = grow_base(
        start, opened, out, CheckpointFacts(name, version, lineage, command),
        DistillConfig(**{key: value for key, value in options.items() if value is not None}),
        judged=known,
        store=StatementStore(cache_root().parent / "statements", workers=threads),
        on_event=lambda corpus, phase, facts: output.note(f"{corpus}: {_event(phase, facts)}"),
    )  # fmt: skip
    config, metrics = grown.checkpoint.config, json_file(grown.metrics)
    card = render_card(json.loads(config.to_json()), json.loads(metrics))
    write_files(out, {"metrics.json": metrics, "README.md": card.encode()})
    grown.checkpoint.save(out)  # last: the config makes the folder a checkpoint
    result = {"path": out, "name": config.name, "version": config.version, "base": config.lineage.get("base")}
    result |= {"parameters": grown.checkpoint.model.parameter_count(), "added": grown.added, **grown.metrics}
    output.data(result, _base(result))
    warn_without_licence(config.lineage, output)
    output.hint(f"tchub adapt {shlex.quote(str(out))} --device local --budget 10%")


def _event(phase: str, facts: Mapping[str, Any]) -> str:
    """Return the line of an epoch, or of a device that was learnt."""
    if phase != "done":
        from ...zoo.training.fit import epoch_line

        return epoch_line(f"{_PHASES[phase]}, epoch {int(facts['epoch']) + 1}", facts)
    scores = ", ".join(f"{who} {score_text(row['pairwise'])}" for who, row in facts["test"].items())
    gate = "" if facts["gate"] is None else f", gate {facts['gate']:.2f}"
    text = f"learnt {facts['programs']:,} programs of {facts['tasks']} tasks{gate}; test pairwise: {scores or '-'}"
    return f"{text}; warning: {facts['warning']}" if facts["warning"] else text


def _base(result: Mapping[str, Any]) -> Iterator[Part]:
    """Show of every device what the base knew when it was learnt, and what it knows now."""
    yield f"{result['name']}@{result['version']}: {result['parameters']:,} parameters"
    yield from devices_table(result["devices"])
    for device in result["added"]:
        if device.warning:
            yield f"warning: {device.corpus}: {device.warning}"
    yield f"written to {result['path']}"


def devices_table(devices: object) -> Iterator[Part]:
    """Show the pairwise accuracy on the test tasks of every device of `metrics.json`, in the order of learning.

    An item without the shape of a device gets no row.
    """
    rows = list(filter(None, map(as_object, devices if isinstance(devices, list) else ())))
    if not rows:
        return
    keys = {"its column": "column", "then": "learnt", "now": "now"}
    scores = {title: [as_object(row.get(key)).get("pairwise") for row in rows] for title, key in keys.items()}
    lost = (
        f"{then - now:+.3f}" if isinstance(then, int | float) and isinstance(now, int | float) else "-"
        for then, now in zip(scores["then"], scores["now"], strict=True)
    )
    yield [
        Column("  pairwise by device", [f"  {row.get('corpus', '-')}" for row in rows], least=12),
        *(Column(title, list(map(score_text, values)), True) for title, values in scores.items()),
        Column("forgotten", list(lost), True),
    ]


@opt.command("evaluate")
@click.argument("names", metavar="NAME[,NAME...]")
@click.option("--corpus", required=True, type=opt.PATH, metavar="DIR", help="Corpus folder.")
@click.option(
    "--split", default="test", metavar="PART",
    help="Which tasks: test (those of the held-out networks), val, train, all, or a JSON file that lists tasks.",
)  # fmt: skip
@click.option(
    "--baselines", metavar="LIST",
    help="Of random, xgboost, ten_percent, statements, with commas, or none. [default: random,xgboost]",
)  # fmt: skip
@click.option(
    "--labels", default=0, metavar="N", type=click.IntRange(0),
    help="Also rank with N random programs of each task known, as a tilenet can; they do not count.",
)  # fmt: skip
@click.option("--seed", default=0, help="Seed of the baselines and the labels.")
@opt.torch_threads_option
def evaluate_command(names: str, corpus: Path, baselines: str | None, output: Output, **options: Any) -> None:
    """Score checkpoints on a corpus. NAME is a name that `tchub list` shows or a folder.

    Top-1 and top-5 are those of TLP 6.1 and TCL equation 12, weighted by how often the networks hold a task;
    the means weigh tasks alike; pairwise is the share of pairs over 5% apart that are ordered rightly.
    Baselines learn from the tasks that do not judge: `xgboost` reads what the checkpoint reads, `ten_percent` is the
    checkpoint's own recipe on a tenth of the programs, `statements` is MetaSchedule's XGBoost on TVM's PerStoreFeature,
    for which each program is lowered (20 ms each, and kept). With --split all there is only `random`.

    \b
    Examples:
      tchub evaluate tcl-epyc --corpus corpora/epyc
      tchub evaluate tcl-epyc,tilenet-epyc --corpus corpora/epyc --split all
      tchub evaluate tcl-epyc --corpus corpora/epyc --split tasks.json --baselines random,statements --json
      tchub evaluate tilenet-v100 --corpus corpora/v100-ansor --labels 16
    """
    from ...zoo.corpus import Corpus
    from ...zoo.models import Checkpoint
    from ..publishing.evaluate import BASELINES, EvaluationConfig, evaluate_each
    from .progress import shown_progress

    usual = "random" if options["split"] == "all" else "random,xgboost"
    chosen = () if baselines == "none" else tuple(dict.fromkeys((baselines or usual).split(",")))
    if unknown := [name for name in chosen if name not in BASELINES]:
        raise click.BadParameter(f"unknown baseline {unknown[0]!r}: choose of {', '.join(BASELINES)}, or none")
    opened = Corpus.open(corpus)
    checkpoints = [Checkpoint.load(find_checkpoint(name)) for name in dict.fromkeys(names.split(","))]
    config = EvaluationConfig(baselines=chosen, cache=cache_root().parent / "statements", **options)
    with shown_progress(output) as progress:
        results = evaluate_each(checkpoints, opened, config, progress.note, progress.count)
    output.data(results[0] if len(results) == 1 else {"evaluations": results}, _scores(results))


def _scores(results: list[dict[str, Any]]) -> Iterator[Part]:
    from ...cards.metrics import HEADS

    first = results[0]
    yield f"{first['corpus']}, {first['split']}: {first['programs']} programs of {first['tasks']} tasks"
    rows = {result["checkpoint"]: result["results"]["model"] for result in results}
    for result in results:
        title = result["checkpoint"] if len(results) > 1 else ""
        for number, scores in result.get("few_shot", {}).items():
            rows[f"{title} given {number} programs".lstrip()] = scores
        own = {name: scores for name, scores in result["results"].items() if name != "model"}
        rows |= {
            scores.get("label", f"{name} {title if 'ten' in name else ''}"): scores for name, scores in own.items()
        }
    yield [
        Column("", list(rows), least=16),
        *(
            Column(title, [f"{scores[key]:.4f}" for scores in rows.values()], True, 1 if "mean" in key else None)
            for key, title in TITLES.items()
        ),
    ]
    for result in results:
        if heads := result.get("heads"):
            shown = ", ".join(f"{HEADS[name]} {value:.4f}" for name, value in heads.items())
            yield f"{result['checkpoint']}, R² of its heads: {shown}"
    by_class = [{row["operator"]: row for row in result["classes"]} for result in results]
    names = list(dict.fromkeys(name for rows in by_class for name in rows))
    sizes = [next(rows[name] for rows in by_class if name in rows) for name in names]
    yield [
        Column("pairwise by operator class", names, least=12),
        Column("tasks", [str(row["tasks"]) for row in sizes], True),
        Column("programs", [str(row["programs"]) for row in sizes], True, 1),
        *(
            Column(result["checkpoint"], [score_text(rows.get(name, {}).get("pairwise")) for name in names], True)
            for result, rows in zip(results, by_class, strict=True)
        ),
    ]
