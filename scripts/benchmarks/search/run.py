"""What each part of Fasor saves, on spaces of which all was measured and on this machine, and what `--mode fast` gives.

    python -m scripts.benchmarks search --live --json

Spaces: 24 small tasks, of networks that neither the checkpoint nor the schedules have learnt from, all of whose
programs were measured once (`spaces.py`); searches are replayed on them (`replay.py`). Live (`live.py`): sessions of
`tchub tune` on such networks. A system is worth what it saves: the measurements after which it has the latency that the
search without schedules ends with. Fast: whole networks, compiled without a measurement and after a search. Without
`--live` the figures are of the live runs that were kept.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import isfinite
from pathlib import Path
from statistics import geometric_mean, mean, stdev
from typing import Any

import click
from tchub.hub.search.models import choose_model
from tchub.hub.search.schedules import ScheduleDatabase
from tchub.zoo.corpus import Corpus, split_tasks
from tchub.zoo.devices import Device

from scripts.benchmarks.common import (
    CLOCK,
    ROOT,
    Clock,
    Document,
    Journal,
    benchmark,
    in_process,
    lacking,
    note,
    work_option,
)  # fmt: skip
from scripts.benchmarks.search import spaces
from scripts.benchmarks.search.live import DATABASE, LIVE, TODAY, tune_fast, tune_tasks
from scripts.benchmarks.search.lookup import read_tasks
from scripts.benchmarks.search.replay import Replay, System, sensitivity

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
SEEDS = 10  # of the replays
LIVE_NETWORKS, LIVE_SEEDS = ("resnet-50", "mobilenet-v2", "bert-tiny", "bert-base"), 3
PER_TASK, LIVE_PER_TASK = 32, 3
# Places of a curve that the document keeps, in programs a task.
PLACES = (1, 2, 3, 4, 8, 16, 32)


@benchmark(
    "search",
    click.option("--live", is_flag=True, help="Measure what is missing on this machine, which must be idle."),
    click.option(
        "--measure-spaces", is_flag=True, help="Measure all programs of the spaces, on an idle machine, and end."
    ),
    work_option("search"),
    CLOCK,
)
def main(live: bool, measure_spaces: bool, work: Path, clock: Clock) -> Document | None:
    """Searches side by side on recorded programs and on this machine."""
    if measure_spaces:
        spaces.measure_spaces(work, SPACES, clock)
        return None
    replayed, kept = Replayed(), Journal(work / "replays.jsonl")
    replays = [
        kept.get(
            lambda s=s, k=k: replayed.replay(SYSTEMS[s], k),
            clock,
            network="spaces",
            corpus=replayed.hash,
            system=s,
            seed=k,
        )
        for k in range(SEEDS)
        for s in SYSTEMS
    ]
    tunings, fast, fast_dqn = (Journal(work / f"{name}.jsonl") for name in ("live", "fast", "fast_dqn"))
    never = clock if live else Clock(0)
    for seed in range(LIVE_SEEDS):
        for network in LIVE_NETWORKS:
            for name in LIVE:
                if live:
                    note(f"{network}, {name}, seed {seed}")
                tunings.get(
                    lambda n=network, s=name, k=seed: in_process(tune_tasks, n, s, k, LIVE_PER_TASK, work),
                    never, network=network, system=name, seed=seed,
                )  # fmt: skip
            if not seed:
                fast.get(lambda n=network: in_process(tune_fast, n, LIVE_PER_TASK, work), never, network=network)
                fast_dqn.get(
                    lambda n=network: in_process(tune_fast, n, LIVE_PER_TASK, work, "dqn"), never, network=network
                )
    ours = figures(tunings.rows(), [name for name in LIVE if tunings.find(system=name)])
    without = [row | (fast_dqn.find(network=row["network"]) or {}) for row in fast.rows()]
    details = {
        "spaces": figures([row for row in replays if row], SYSTEMS),
        "live": ours,
        "live_networks": by_network(tunings.rows()),
        "fast": without,
    }
    count = len(LIVE_NETWORKS) * (LIVE_SEEDS * len(LIVE) + 2)
    done = sum(len(journal.rows()) for journal in (tunings, fast, fast_dqn))
    left = [
        *lacking(replays.count(None), len(replays), "replays"),
        *lacking(count - done, count, "live runs"),
    ]
    return summed_up(details["spaces"], ours, without), details | {"not_done": left}, range(SEEDS)


def summed_up(replays: Sequence[Any], live: Sequence[Any], fast: Sequence[Any]) -> dict[str, Any]:
    """Return the figures that documents quote."""
    summary: dict[str, Any] = {}
    for prefix, rows in (("spaces_", replays), ("", live)):
        for row in rows:
            if row["system"] == DATABASE and "measurements_ratio" in row:
                summary[f"{prefix}measurements_ratio"] = row["measurements_ratio"]["mean"]
    if fast:
        summary["fast_mode_ratio"] = geometric_mean(row["fast_ms"] / row["search_ms"] for row in fast)
        summary["fast_mode_seconds"] = max(row["fast_seconds"] for row in fast)
    return summary


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


def figures(rows: Iterable[Mapping[str, Any]], systems: Iterable[str]) -> list[dict[str, Any]]:
    """Return each system's row: means over the seeds of geometric means over the networks, with 95% intervals.

    `measurements_ratio`: today's measurements until its final latency over the system's until it has that too; a system
    that never has it counts with all that it measured. `reached`: the share of runs that have it. `latency_ratio`:
    today's final latency over the system's.
    `after`: the latency after so many programs a task, relative to today's final one. `unmeasured`: before any, over
    that of the fastest programs. `searching`, `measuring`: seconds.
    """
    curves = {(row["network"], row["seed"], row["system"]): row for row in rows}
    table = []
    for system in systems:
        seeds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for (network, seed, name), row in curves.items():
            today = curves.get((network, seed, TODAY))
            if name != system or today is None:
                continue
            final, curve = today["curve"][-1], row["curve"]
            own, theirs = first_at(curve, final, len(today["curve"]) - 1), first_at(today["curve"], final)
            seeds["reached"][seed].append(float(min(curve) <= final))
            seeds["measurements_ratio"][seed].append(theirs / max(1, own))
            seeds["latency_ratio"][seed].append(final / curve[-1])
            for column in {"searching", "measuring", "unmeasured"} & row.keys():
                seeds[column][seed].append(row[column])
            for count in PLACES:
                if count * row["tasks"] < len(curve) and isfinite(curve[count * row["tasks"]]):
                    seeds[f"after {count}"][seed].append(curve[count * row["tasks"]] / final)
        # A share may be 0.
        average = {name: mean if name == "reached" else geometric_mean for name in seeds}
        means = {name: interval([average[name](values) for values in by.values()]) for name, by in seeds.items()}
        table.append({"system": system, **means})
    return table


def by_network(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the live sessions: milliseconds after half and all of the trials."""
    return [
        {name: row[name] for name in ("network", "system", "seed", "tasks")}
        | ({"model": row["model"]} if "model" in row else {})
        | {"trials": len(row["curve"]) - 1}
        | {"half_ms": 1e3 * row["curve"][len(row["curve"]) // 2], "final_ms": 1e3 * row["curve"][-1]}
        for row in rows
    ]


def first_at(curve: Sequence[float], latency: float, never: int = 0) -> int:
    """Return after how many measurements a curve first has a latency; its end where it never has, `never` at least."""
    return next((count for count, value in enumerate(curve) if value <= latency), max(never, len(curve) - 1))


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and half the width of its 95% interval, which one value does not have."""
    return {"mean": mean(values), "half": 1.96 * stdev(values) / len(values) ** 0.5 if len(values) > 1 else None}
