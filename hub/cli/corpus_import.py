"""`tchub corpus import`: another tool's log becomes a corpus."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from ...zoo.corpus.schema import FRAMEWORKS
from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console


@click.command("import")
@click.argument("source", metavar="SRC", type=click.Path())
@click.option("--device", metavar="NAME", required=True, help="The device that all programs were measured on.")
@click.option("--out", "folder", metavar="DIR", required=True, type=click.Path(file_okay=False), help="The corpus.")
@click.option("--framework", type=click.Choice(FRAMEWORKS), help="Whose log it is; told from its lines by default.")
@click.option("--tasks", metavar="FILE[:NAME]", help="JSON of device -> task name -> facts; NAME if not --device.")
@click.option("--split", metavar="FILE[:NAME]", help="JSON of protocol -> train, val, test; NAME if not --device.")
@click.option("--licence", help="Licence of the log, kept with every program.")
@click.option("--source", "origin", help="Where the log came from, kept with every program.")
@click.option("--allow-mixed", is_flag=True, help="Take records whose targets name different devices.")
@click.option("--min-programs", default=0, show_default=True, help="Leave out tasks with fewer valid programs.")
@output_options
def command(
    source: str,
    device: str,
    folder: str,
    framework: str | None,
    tasks: str | None,
    split: str | None,
    licence: str | None,
    origin: str | None,
    allow_mixed: bool,
    min_programs: int,
    out: Output,
) -> None:
    """Make a corpus of an Ansor, TenSet or AutoTVM log, or of a MetaSchedule database.

    SRC is a log (.json, .log, also .xz or .gz), a folder of logs, or a database folder. Records that cannot be
    read are counted by kind and reported; nothing is left behind when the import is interrupted.

    \b
    Examples:
      tchub corpus import v100.json.xz --device v100 --out corpora/v100 --licence MIT
      tchub corpus import k80.json --device k80 --tasks tasks.json --split splits.json:common --out corpora/k80
      tchub corpus import out/database --device a100 --out corpora/a100 --min-programs 8
    """
    from ...zoo.corpus.importers import ImportContext, import_corpus, read_facts, read_protocol

    task_file, task_name = _file_and_name(tasks, device)
    split_file, split_name = _file_and_name(split, device)
    facts = read_facts(task_file, task_name) if task_file else {}
    report = import_corpus(
        source,
        folder,
        ImportContext(device, licence, origin, facts, allow_mixed),
        framework=framework,
        split=read_protocol(split_file, split_name) if split_file else None,
        min_programs=min_programs,
        command=_command(
            source,
            min_programs,
            allow_mixed,
            {
                "--device": device,
                "--framework": framework,
                "--tasks": tasks,
                "--split": split,
                "--licence": licence,
                "--source": origin,
            },
        ),
        progress=lambda programs: out.note(f"{programs:,} programs"),
    )
    found = report.as_dict()
    out.data(found, lambda console: _draw(found, console))
    out.hint(f"tchub corpus check {folder}")


def _file_and_name(text: str | None, device: str) -> tuple[str | None, str]:
    file, colon, name = (text or "").rpartition(":")
    return (file, name) if colon and name and "/" not in name else (text, device)


def _command(source: str, min_programs: int, allow_mixed: bool, options: dict[str, str | None]) -> str:
    """What makes the same again; options that were not given are left out."""
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    given += ["--allow-mixed"] * allow_mixed + ["--min-programs", str(min_programs), "--out", "DIR"]
    return shlex.join(["tchub", "corpus", "import", source, *given])


def _draw(found: dict[str, Any], console: Console) -> None:
    def line(name: str, text: object) -> None:
        console.print(f"{name:<16}{text}", highlight=False)

    line("framework", found["framework"])
    line("tasks", f"{found['tasks']}, and {len(found['too_small'])} left out as too small")
    line("programs", f"{found['programs']}: {found['valid_programs']} valid, {found['failed_programs']} failed")
    line("failed", ", ".join(f"{kind} {count}" for kind, count in found["errors"].items()) or "none")
    line("duplicates", f"{found['duplicates']}, left out")
    line("broken records", sum(found["broken"].values()))
    for kind, count in found["broken"].items():
        line(f"  {kind}", count)
        for example in found["examples"][kind]:
            line("", example)
    if found["without_task"]:
        line("split", f"{len(found['without_task'])} of its tasks are not in the log: {found['without_task'][0]}, ...")
