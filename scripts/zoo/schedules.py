"""Write the schedules in the wheel: the fastest program of each training task of this project's corpora of a family.

No task of a network that the papers hold out is among them, nor one that computes the same.

    python -m scripts.zoo.schedules
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import click
from tchub.hub.search.schedules import PRETUNED, ScheduleDatabase
from tchub.zoo.corpus import Corpus, free_tasks, held_out_computations

from scripts.benchmarks.common import ROOT

# By device, since latencies of two devices do not compare: a later one's schedules take the place of an earlier one's.
FAMILIES = {"epyc": (("epyc-turin", "epyc-turin-nhwc", "epyc-turin-tuned"), ("epyc-genoa-tuned",))}


@click.command()
def main() -> None:
    """Write the schedules of each family."""
    for family, devices in FAMILIES.items():
        schedules = fastest([[Corpus.open(ROOT / "corpora" / name) for name in names] for names in devices])
        path = PRETUNED / f"{family}.json"
        schedules.write(path)
        click.echo(f"{len(schedules)} schedules: {path.relative_to(ROOT)}")


def fastest(devices: list[list[Corpus]]) -> ScheduleDatabase:
    """Return the schedules of the tasks that may be learnt from, the last device's where several measured a task."""
    held = held_out_computations(chain.from_iterable(devices))
    schedules = ScheduleDatabase()
    for corpora in devices:
        schedules = ScheduleDatabase(programs(corpora, held), schedules)
    return schedules


def programs(corpora: list[Corpus], held: set[str]) -> Iterator[tuple[str, str, float]]:
    """Yield the valid programs of all tasks that compute nothing of `held`."""
    for corpus in corpora:
        for task_id in free_tasks(corpus, held, "train", "val"):
            for program in corpus.programs(task_id):
                if program.valid:
                    yield program.task_id, program.trace, program.latency


if __name__ == "__main__":
    main()
