"""`tchub corpus replay`: an old Ansor log as a MetaSchedule database that today's TVM can apply."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console


@click.command("replay")
@click.argument("log", metavar="LOG", type=click.Path())
@click.option("--to", "folder", metavar="DIR", required=True, type=click.Path(file_okay=False), help="The database.")
@click.option("--target", help="TVM target of its records, a name or JSON; without it, the kind of the log's own.")
@click.option("--limit-per-task", type=click.IntRange(min=1), help="Programs of a task to replay, from its first.")
@output_options
def command(folder: str, log: str, target: str | None, limit_per_task: int | None, out: Output) -> None:
    """Replay the programs of an Ansor log as schedules of today's TVM and keep them as a MetaSchedule database.

    Every replay is checked against its record: loop extents, their order, thread bindings, unrolling. Only tasks of
    plain operators can be replayed (conv2d_layer, matmul_layer, ...); a task known by a hash names no computation.

    \b
    Examples:
      tchub corpus replay v100.json.xz --to v100-database --limit-per-task 40
      tchub corpus replay ansor.log --to database --target nvidia/nvidia-v100 --json
    """
    from ...zoo.corpus.replay.database import replay_log

    with out.console.status("replaying"):
        report = replay_log(log, folder, _target(target), limit_per_task)
    out.data(report.as_dict(), lambda console: _draw(report.as_dict(), console))
    out.hint(f"tchub corpus import {folder} --device NAME --out DIR")


def _target(text: str | None) -> dict[str, Any] | str | None:
    return json.loads(text) if text and text.lstrip().startswith("{") else text


def _draw(found: dict[str, Any], console: Console) -> None:
    for op, counts in found["operators"].items():
        share = counts["replayed"] / counts["of"]
        console.print(f"{op:<14}{counts['replayed']:>8} of {counts['of']:<8}{share:>8.1%}", highlight=False)
    for row in found["reasons"]:
        text = f"not replayed: {row['programs']} {row['op']}, {row['reason']}: {row['example']}"
        console.print(text, highlight=False)
    for name in ("untimed", "over_limit"):
        if found[name]:
            console.print(f"not tried: {found[name]} {name.replace('_', ' ')}", highlight=False)
    for kind, count in found["broken"].items():
        console.print(f"not read: {count} {kind}", highlight=False)
