"""What schedules of similar tasks save, on recorded programs and on this machine, and what `--mode fast` gives.

    python -m scripts.benchmarks search --live --json

Recorded: the networks' tasks are those that neither the checkpoint nor the schedules have learnt from, and the programs
that were recorded of them are the spaces (`replay.py`). Proposed: what finds the best programs for the checkpoint among
equally many (`walks.py`), Fasor's DQN too. Live (`live.py`): sessions of `tchub tune` on networks that both have not
learnt from either, with the schedules in the wheel and without. A system is worth what it saves: the measurements after
which it has the latency that today's search ends with. Fast: whole networks, compiled without a measurement and after a
search. Without `--live` the figures are of the live runs that were kept.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
from tchub.hub.api import load
from tchub.hub.search.schedules import ScheduleDatabase
from tchub.zoo.corpus import HELD_OUT, Corpus, split_tasks, usable_programs

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
from scripts.benchmarks.search.live import CHECKPOINT, DATABASE, LIVE, TODAY, tune_fast, tune_tasks
from scripts.benchmarks.search.replay import Replay, System, read_spaces, sensitivity
from scripts.benchmarks.search.walks import PROPOSERS, Walks, interval, proposed

CORPUS = ROOT / "corpora" / "epyc-turin"
SYSTEMS = {
    "random": System("random"),
    "xgb": System("xgb"),
    TODAY: System(),
    DATABASE: System(database=True),
    "today + few-shot": System(few_shot=True),
    "today + subspace": System(subspace=True),
    "all": System(database=True, few_shot=True, subspace=True),
}
SEEDS = 10  # of the replays
LIVE_NETWORKS, LIVE_SEEDS = ("resnet-50", "mobilenet-v2", "bert-tiny", "bert-base"), 3
WALKED = LIVE_NETWORKS[:3]  # whose programs are proposed
PER_TASK, LIVE_PER_TASK = 8, 3
# Places of a curve that the document keeps, in programs a task.
PLACES = (1, 2, 3, 4, 6, 8)


@benchmark(
    "search",
    click.option("--live", is_flag=True, help="Measure what is missing on this machine, which must be idle."),
    work_option("search"),
    CLOCK,
)
def main(live: bool, work: Path, clock: Clock) -> Document:
    """Searches side by side on recorded programs and on this machine."""
    recorded, material = Recorded(), Journal(work / "replays.jsonl")
    replays = [
        material.get(lambda n=n, s=s, k=k: recorded.replay(n, SYSTEMS[s], k), clock, network=n, system=s, seed=k)
        for n in HELD_OUT
        for s in SYSTEMS
        for k in range(SEEDS)
    ]
    walks, material = Walks(), Journal(work / "walks.jsonl")
    walked = [
        material.get(lambda n=n, s=s, k=k: walks.compare(n, s, k), clock, network=n, system=s, seed=k)
        for n in WALKED
        for s in PROPOSERS
        for k in range(SEEDS)
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
        "recorded": figures([row for row in replays if row], SYSTEMS),
        "proposed": proposed([row for row in walked if row]),
        "live": ours,
        "live_networks": by_network(tunings.rows()),
        "fast": without,
    }
    count = len(LIVE_NETWORKS) * (LIVE_SEEDS * len(LIVE) + 2)
    done = sum(len(journal.rows()) for journal in (tunings, fast, fast_dqn))
    left = [
        *lacking(replays.count(None) + walked.count(None), len(replays) + len(walked), "replays and walks"),
        *lacking(count - done, count, "live runs"),
    ]
    return summed_up(ours, without), details | {"not_done": left}, range(SEEDS)


def summed_up(live: Sequence[Any], fast: Sequence[Any]) -> dict[str, Any]:
    """Return the figures that documents quote."""
    summary: dict[str, Any] = {}
    for row in live:
        if row["system"] == DATABASE and "measurements_ratio" in row:
            summary["measurements_ratio"] = row["measurements_ratio"]["mean"]
    if fast:
        summary["fast_mode_ratio"] = geometric_mean(row["fast_ms"] / row["search_ms"] for row in fast)
        summary["fast_mode_seconds"] = max(row["fast_seconds"] for row in fast)
    return summary


class Recorded:
    """The recorded spaces, and what was measured of other networks; read when the first replay is missing."""

    def __init__(self) -> None:
        self._read = False

    def _open(self) -> None:
        self._read = True
        self.checkpoint = load(CHECKPOINT)
        corpus = self.corpus = Corpus.open(CORPUS)
        split = split_tasks(corpus)
        schema = self.checkpoint.config.feature_schema
        self.spaces = read_spaces(corpus, split.test, schema)
        others = (*split.train, *split.val)
        programs = (program for own in usable_programs(corpus, others).values() for program in own)
        self.database = ScheduleDatabase((p.task_id, p.trace, p.latency) for p in programs)
        self.sensitive = sensitivity(read_spaces(corpus, others, schema))

    def replay(self, network: str, system: System, seed: int) -> dict[str, Any]:
        """Replay one system on one network; latencies are relative to the best programs' that were recorded."""
        if not self._read:
            self._open()
        weights = {space.task_id: self.corpus.tasks[space.task_id].weight((network,)) for space in self.spaces}
        spaces = [space for space in self.spaces if weights[space.task_id]]
        replay = Replay(spaces, weights, system, seed, self.checkpoint, self.database, self.sensitive)
        best = sum(weights[space.task_id] * float(space.latency.min()) for space in spaces)
        curve = replay.curve(PER_TASK * len(spaces))
        return {"tasks": len(spaces), "curve": [round(latency / best, 5) for latency in curve]}


def figures(rows: Iterable[Mapping[str, Any]], systems: Iterable[str]) -> list[dict[str, Any]]:
    """Return each system's row: means over the seeds of geometric means over the networks, with 95% intervals.

    `measurements_ratio`: today's measurements until its final latency over the system's until it has that too; a system
    that never has it counts with all that it measured. `latency_ratio`: today's final latency over the system's.
    `latency`: after so many programs a task, relative to today's final one.
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
            own, theirs = (first_at(one, final) for one in (curve, today["curve"]))
            seeds["measurements_ratio"][seed].append(theirs / max(1, own))
            seeds["latency_ratio"][seed].append(final / curve[-1])
            for count in PLACES:
                if count * row["tasks"] < len(curve) and isfinite(curve[count * row["tasks"]]):
                    seeds[f"after {count}"][seed].append(curve[count * row["tasks"]] / final)
        means = {name: interval([geometric_mean(values) for values in by.values()]) for name, by in seeds.items()}
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


def first_at(curve: Sequence[float], latency: float) -> int:
    """Return after how many measurements a curve first has a latency; its end where it never has."""
    return next((count for count, value in enumerate(curve) if value <= latency), len(curve) - 1)
