"""What the schedules in the wheel and the DQN save on this machine, and what `--mode fast` gives.

    python -m scripts.benchmarks search --live --json

Sessions of `tchub tune` (`live.py`), on networks that neither the checkpoint nor the schedules have learnt from.
Fast: whole networks, compiled without a measurement and after a search. Without `--live`: the runs that were kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click

from scripts.benchmarks.common import CLOCK, Clock, Document, Journal, benchmark, in_process, lacking, note, work_option
from scripts.benchmarks.curves import figures, saved
from scripts.benchmarks.search.live import LIVE, tune_fast, tune_tasks

NETWORKS, SEEDS, PER_TASK = ("resnet-50", "mobilenet-v2", "bert-tiny", "bert-base"), 3, 3


@benchmark(
    "search",
    click.option("--live", is_flag=True, help="Measure what is missing on this machine, which must be idle."),
    work_option("search"),
    CLOCK,
)
def main(live: bool, work: Path, clock: Clock) -> Document:
    """Sessions with schedules of similar tasks and without, and networks tuned without measuring."""
    tunings, fast, fast_dqn = (Journal(work / f"{name}.jsonl") for name in ("live", "fast", "fast_dqn"))
    never = clock if live else Clock(0)
    for seed in range(SEEDS):
        for network in NETWORKS:
            for name in LIVE:
                if live:
                    note(f"{network}, {name}, seed {seed}")
                key = {"network": network, "system": name, "seed": seed}
                tunings.get(lambda k=key: in_process(tune_tasks, *k.values(), PER_TASK, work), never, **key)
            if not seed:
                fast.get(lambda n=network: in_process(tune_fast, n, PER_TASK, work), never, network=network)
                fast_dqn.get(lambda n=network: in_process(tune_fast, n, PER_TASK, work, "dqn"), never, network=network)
    if not tunings.rows():  # the document that is there would be lost
        raise click.UsageError(f"no live run is kept in {work}: add --live, on an idle machine")
    table = figures(tunings.rows(), [name for name in LIVE if tunings.find(system=name)])
    without = [row | (fast_dqn.find(network=row["network"]) or {}) for row in fast.rows()]
    count = len(NETWORKS) * (SEEDS * len(LIVE) + 2)
    done = sum(len(journal.rows()) for journal in (tunings, fast, fast_dqn))
    details = {"live": table, "live_networks": by_network(tunings.rows()), "fast": without}
    return summed_up(table, without), details | {"not_done": lacking(count - done, count, "live runs")}, range(SEEDS)


def summed_up(live: Sequence[Any], fast: Sequence[Any]) -> dict[str, Any]:
    """Return the figures that documents quote."""
    if not fast:
        return saved(live)
    ratio = geometric_mean(row["fast_ms"] / row["search_ms"] for row in fast)
    return saved(live) | {"fast_mode_ratio": ratio, "fast_mode_seconds": max(row["fast_seconds"] for row in fast)}


def by_network(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the live sessions: milliseconds after half and all of the trials."""
    return [
        {name: row[name] for name in ("network", "system", "seed", "tasks", "model") if name in row}
        | {"trials": len(row["curve"]) - 1}
        | {"half_ms": 1e3 * row["curve"][len(row["curve"]) // 2], "final_ms": 1e3 * row["curve"][-1]}
        for row in rows
    ]
