"""`tchub distill`: a knowledge base learns one device or several, and keeps those it knows."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ...zoo.files import write_files
from ...zoo.plain_json import json_file
from ..registry import CheckpointName, Version, cache_root, find_checkpoint
from ..registry.entry import as_object
from ..text import Column, Part, score_text
from . import options as opt
from .output import Output
from .train import check_folder, licence_option, resume_option, warn_without_licence

_NEW = "new:"
_REPRODUCED = ("corpora", "keep_order", "epochs", "per_task", "ewc", "recipe", "schedule")
_PHASES = {"train": "first device", "learn": "column learns", "distill": "base learns"}


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
    again = opt.given_again(only=_REPRODUCED, folders_by_name=True)
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
