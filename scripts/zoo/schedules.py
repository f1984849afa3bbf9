"""Write the schedules in the wheel: the fastest program of each training task of this project's corpora of a family.

No task of a network that the papers hold out is among them, nor one that computes the same.

    python -m scripts.zoo.schedules
"""

from __future__ import annotations

from collections.abc import Iterator

import click
from tchub.hub.search.schedules import PRETUNED, ScheduleDatabase
from tchub.zoo.corpus import Corpus, free_tasks, held_out_computations

from scripts.benchmarks.common import ROOT

FAMILIES = {"epyc": ("epyc-turin", "epyc-turin-nhwc", "epyc-turin-tuned")}


@click.command()
def main() -> None:
    """Write the schedules of each family."""
    for family, names in FAMILIES.items():
        schedules = ScheduleDatabase(programs([Corpus.open(ROOT / "corpora" / name) for name in names]))
        path = PRETUNED / f"{family}.json"
        schedules.write(path)
        click.echo(f"{len(schedules)} schedules: {path.relative_to(ROOT)}")


def programs(corpora: list[Corpus]) -> Iterator[tuple[str, str, float]]:
    """Yield the valid programs of all tasks that may be learnt from."""
    held = held_out_computations(corpora)
    for corpus in corpora:
        for task_id in free_tasks(corpus, held, "train", "val"):
            for program in corpus.programs(task_id):
                if program.valid:
                    yield program.task_id, program.trace, program.latency


if __name__ == "__main__":
    main()
