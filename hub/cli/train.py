"""`tchub train` and `evaluate`: make a checkpoint of corpora, and score one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..registry import cache_root, find_checkpoint
from ..registry.listing import TITLES
from ..text import Column, Part, score_text
from . import options as opt
from .output import Output

if TYPE_CHECKING:
    from ...zoo.training.fit import FitResult

_REPRODUCED = ("corpora", "checkpoint", "programs_fraction", "per_task")

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
