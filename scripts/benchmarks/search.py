"""What the schedules in the wheel and the DQN save on this machine, and what `--mode fast` gives.

    python -m scripts.benchmarks search --live --json

A session of `tchub tune` is of the same tasks, checkpoint, seed and number of trials, with the wheel's schedules and
without, each in a process and a folder of its own, on networks that neither the checkpoint nor the schedules have
learnt from. Fast: whole networks, in a fresh home, so that no earlier run helps, compiled without a measurement and
after a search. Without `--live`: the runs that were kept.
"""

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click

from scripts.benchmarks.common import CLOCK, Clock, Document, Journal, benchmark, in_process, lacking, note, work_option
from scripts.benchmarks.curves import DATABASE, TODAY, figures, saved

NETWORKS, SEEDS, PER_TASK = ("resnet-50", "mobilenet-v2", "bert-tiny", "bert-base"), 3, 3
CHECKPOINT, THREADS = "tilenet-epyc", 1
# Of each live system: whether it begins with the wheel's schedules, and the settings of its search.
LIVE: dict[str, tuple[bool, dict[str, Any]]] = {
    TODAY: (False, {}),
    DATABASE: (True, {}),
    "dqn + database": (True, {"engine": "dqn"}),
    "dqn + database, no roofline": (True, {"engine": "dqn", "roofline": False}),
}


def tune_tasks(network: str, system: str, seed: int, per_task: int, work: Path) -> dict[str, Any]:
    """Return the sum of the tasks' latencies in seconds before and after each trial; infinite before all have one."""
    import tvm
    from tchub.hub.device.detect import detect_local
    from tchub.hub.device.extensions import vector_lanes
    from tchub.hub.device.measure import MeasureConfig, Measurer
    from tchub.hub.device.timing import weights_between
    from tchub.hub.networks.alternatives import find_alternatives, further_weights
    from tchub.hub.networks.tasks import network_tasks, weight_bytes
    from tchub.hub.networks.transform.prepare import LAYOUTS, for_inference, lower
    from tchub.hub.networks.workloads import load_network
    from tchub.hub.records.scope import MeasurementScope
    from tchub.hub.records.store import FILE, RunStore
    from tchub.hub.search.cost_model import choose_model
    from tchub.hub.search.interrupt import StopFlag
    from tchub.hub.search.measuring import WorkerMeasure
    from tchub.hub.search.roofline import measure_roofline
    from tchub.hub.search.schedules import ScheduleDatabase
    from tchub.hub.tuning.config import TuneConfig
    from tchub.hub.tuning.session import TuningSession

    local = detect_local(THREADS)
    target: Any = tvm.target.Target(local.target)
    graph = for_inference(load_network(network).imported(), LAYOUTS[0], lanes=vector_lanes(target))
    mod = lower(graph, cpu=True)
    tasks = network_tasks(mod, target, network)
    added, alternatives = find_alternatives(graph, tasks, target, network)
    tasks, curve = [*tasks, *added], [float("inf")]
    with_schedules, options = LIVE[system]
    schedules = ScheduleDatabase.pretuned(target) if with_schedules else None
    trials, search = per_task * len(tasks), search_settings(**options)
    config = TuneConfig(trials=trials, seed=seed, untuned=False, threads=THREADS, search=search)

    def watch(view: Any) -> None:
        curve.extend([view.latency()] * (view.done + 1 - len(curve)))

    folder = work / "session"
    shutil.rmtree(folder, ignore_errors=True)
    weights = weights_between(weight_bytes(mod) + further_weights(tasks, alternatives))
    scope = MeasurementScope.of_device(local, weights)
    with RunStore(folder / FILE, scope) as store, Measurer(local.target, MeasureConfig(threads=THREADS)) as measurer:
        measure = WorkerMeasure(measurer)
        measure.of_network(weights)
        roofline, model = measure_roofline(measure, local.cores), choose_model(CHECKPOINT, seed=seed)
        start = time.monotonic()
        view = TuningSession(
            tasks, target, model.make(), measure, store, config, StopFlag(), watch, None, roofline, alternatives,
            schedules,
        ).run()  # fmt: skip
        seconds = time.monotonic() - start
    facts = {"tasks": len(tasks), "model": model.name, "seconds": seconds, "phases": view.phases}
    return facts | {"curve": [*curve[:-1], view.latency()]}


def search_settings(engine: str = "auto", roofline: bool = True) -> Any:
    """Return the settings of a live search."""
    from tchub.hub.search.settings import DecisionSettings, DQNSettings, SearchSettings

    dqn = DQNSettings(roofline=roofline) if engine == "dqn" else None
    return SearchSettings(engine=engine, decisions=DecisionSettings(dqn=dqn))


def tune_fast(network: str, per_task: int, work: Path, engine: str | None = None) -> dict[str, Any]:
    """Return latencies of the whole network in ms, compiled without measuring and after a search, and the seconds.

    Args:
        engine: compile without measuring alone, with this engine.
    """
    home = os.environ["TCHUB_HOME"] = str(work / "home")
    shutil.rmtree(home, ignore_errors=True)
    from tchub import hub

    row: dict[str, Any] = {}
    runs: dict[str, dict[str, Any]] = {"fast": {"mode": "fast"}, "search": {"reuse": False}}
    if engine is not None:
        runs = {engine: {"mode": "fast", "search": search_settings(engine)}}
    for name, options in runs.items():
        shutil.rmtree(out := work / "network", ignore_errors=True)
        if name == "search":
            options["trials"] = row["trials"] = per_task * row["tasks"]
        start = time.monotonic()
        result = hub.tune(network, checkpoint=CHECKPOINT, threads=THREADS, out=out, **options)
        row |= {f"{name}_seconds": time.monotonic() - start, f"{name}_ms": 1e3 * result.latency["tuned"]}
        row |= {"tasks": len(result.report["runs"]["tuned"]["tasks"]), "pytorch_ms": 1e3 * result.latency["pytorch"]}
    return row


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
