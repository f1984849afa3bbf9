"""What each part of Fasor saves on spaces of which all programs were measured.

    python -m scripts.benchmarks spaces --json

They are 24 small tasks, of networks that neither the checkpoint nor the schedules have learnt from (`measure.py`).
Searches, whose programs are looked up (`lookup.py`), are replayed on them (`replay.py`).
"""

from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import click
from tchub.hub.search.cost_model import choose_model
from tchub.hub.search.schedules import ScheduleDatabase
from tchub.zoo.corpus import Corpus, split_tasks
from tchub.zoo.devices import Device

from scripts.benchmarks.common import CLOCK, ROOT, Clock, Document, Journal, benchmark, lacking, work_option
from scripts.benchmarks.curves import DATABASE, TODAY, figures, saved
from scripts.benchmarks.spaces.lookup import read_tasks
from scripts.benchmarks.spaces.measure import measure_spaces
from scripts.benchmarks.spaces.replay import Replay, System, sensitivity

SPACES = ROOT / "corpora" / "xeon-spaces"
# A checkpoint of the family of the spaces, and what was measured there of other networks.
REPLAYED, OTHERS = "tilenet-xeon", ROOT / "corpora" / "xeon-cascadelake-prefetch"
SYSTEMS = {
    "random": System(model="random", database=False),
    "xgb": System(model="xgb", database=False),
    TODAY: System(database=False),
    DATABASE: System(),
    "+ subspace": System(subspace="sensitive"),
    "+ random subspace": System(subspace="random"),
    "+ few-shot": System(few_shot=True),
    "dqn": System("dqn"),
    "dqn, no transfer": System("dqn", model="xgb"),
    "dqn, default start": System("dqn", database=False),
    "dqn, subspace": System("dqn", subspace="sensitive"),
    "dqn, random subspace": System("dqn", subspace="random"),
    "dqn, no roofline": System("dqn", roofline=False),
    "annealing": System("annealing"),
}
SEEDS, PER_TASK = 10, 32


@benchmark(
    "spaces",
    click.option("--measure", is_flag=True, help="Measure all programs of the spaces, on an idle machine, and end."),
    work_option("spaces"),
    CLOCK,
)
def main(measure: bool, work: Path, clock: Clock) -> Document | None:
    """Searches side by side on measured spaces."""
    if measure:
        measure_spaces(work, SPACES, clock)
        return None
    replayed, journal, rows = Replayed(), Journal(work / "replays.jsonl"), list[Any]()
    for seed in range(SEEDS):
        for name, system in SYSTEMS.items():
            key = {"network": "spaces", "corpus": replayed.hash, "system": name, "seed": seed}
            rows.append(journal.get(lambda s=system, k=seed: replayed.replay(s, k), clock, **key))
    done = [row for row in rows if row]
    table, left = figures(done, SYSTEMS), lacking(len(rows) - len(done), len(rows), "replays")
    return saved(table), {"systems": table, "not_done": left}, sorted({row["seed"] for row in done})


class Replayed:
    """The measured spaces, and what was measured of other networks; read when the first replay is missing."""

    def __init__(self) -> None:
        self.corpus = Corpus.open(SPACES)
        self.hash = self.corpus.meta["files"]["programs.parquet"]["sha256"][:12]

    @cached_property
    def _read(self) -> tuple[Any, ...]:
        meta, others = self.corpus.meta, Corpus.open(OTHERS)
        split, choice = split_tasks(others), choose_model(REPLAYED, runs_on=Device.from_dict(meta["device_sheet"]))
        sensitive = sensitivity(others, (*split.train, *split.val))
        database = ScheduleDatabase.pretuned(meta["target"], choice.schedules)
        return read_tasks(self.corpus), choice.make().scorer.checkpoint, database, sensitive

    def replay(self, system: System, seed: int) -> dict[str, Any]:
        """Replay one system; latencies are relative to the fastest programs', `unmeasured` is of no measurement."""
        tasks, *others = self._read
        budget = PER_TASK * len(tasks)
        replay = Replay(tasks, system, seed, budget, *others)
        row = {"tasks": len(tasks), "curve": [round(latency, 5) for latency in replay.curve()]}
        blind = mean(Replay(tasks, system, seed, budget, *others).unmeasured())
        return row | {"searching": replay.searching, "measuring": replay.measuring, "unmeasured": blind}
