"""Write the schedules in the wheel: the fastest program of each training task of this project's corpora of CPUs.

No task of a network that the papers hold out is among them, nor one that computes the same.

    python -m scripts.zoo.schedules
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

import click
from tchub.hub.search.schedules import PRETUNED, ScheduleDatabase
from tchub.zoo.corpus import Corpus, free_tasks, held_out_computations

from scripts.benchmarks.common import ROOT

# The corpora of programs with vectors of a length, by device, since latencies of two devices do not compare: a later
# one's schedules take the place of an earlier one's.
AVX512 = (("epyc-turin", "epyc-turin-nhwc", "epyc-turin-tuned"), ("epyc-genoa-tuned", "epyc-genoa-products"))
AVX2 = (("epyc-genoa-avx2",),)
# Latency of a program with short vectors, over that of its task with long ones, up to which its schedule is a good one.
NEARLY = 1.15


@click.command()
def main() -> None:
    """Write the schedules for each length of vectors."""
    for name, schedules in pretuned().items():
        path = PRETUNED / f"{name}.json"
        schedules.write(path)
        click.echo(f"{len(schedules)} schedules: {path.relative_to(ROOT)}")


def pretuned() -> dict[str, ScheduleDatabase]:
    """Return the schedules of each file.

    Those for long vectors carry over to short ones. A program with short vectors takes the place of its task's with
    long ones where it is nearly as fast: of other tasks the search found no good one, for its model has not learnt such
    programs.
    """
    devices = [open_corpora(AVX512), open_corpora(AVX2)]
    held = held_out_computations(corpus for own in devices for corpora in own for corpus in corpora)
    long, short = (fastest(own, held) for own in devices)
    latencies = {schedule.task_id: schedule.latency for _, schedule in long}
    good = [
        (kernel, schedule)
        for kernel, schedule in short
        if schedule.latency <= NEARLY * latencies.get(schedule.task_id, inf)
    ]
    tasks = {schedule.task_id for _, schedule in good}
    rest = [(kernel, schedule) for kernel, schedule in long if schedule.task_id not in tasks]
    return {"avx512": long, "avx2": ScheduleDatabase(known=(*good, *rest))}


def open_corpora(devices: Iterable[Iterable[str]]) -> list[list[Corpus]]:
    """Open the corpora of each device."""
    return [[Corpus.open(ROOT / "corpora" / name) for name in names] for names in devices]


def fastest(devices: list[list[Corpus]], held: set[str]) -> ScheduleDatabase:
    """Return the schedules of tasks that compute nothing of `held`, the last device's where several measured one."""
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
