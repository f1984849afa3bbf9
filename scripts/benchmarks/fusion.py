"""Operator fusion by dynamic programming (GTCO's DPOF) beside TVM's: kernels, predicted time, and measured latency.

Where both give the same kernels, nothing is measured. Where they differ, the network is tuned once with each, with the
same trials and seed, each kernel has the faster program of the two runs, and one process times both networks in turn.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest.mock import patch

import click

from scripts.benchmarks.common import (
    CLOCK,
    Clock,
    Document,
    Journal,
    benchmark,
    in_process,
    lacking,
    note,
    read_json,
    work_option,
)
from scripts.benchmarks.gtco import DETR, source_of
from scripts.benchmarks.rivals import SEED, tuned

# Of the benchmark `coverage`: small networks in which kernels differ.
SMALL = ("dpt", "convnextv2", "deberta-v2")
NETWORKS = ("vit-tiny", "bert-tiny", DETR, "bert-base", "resnet-50", *SMALL)
GREEDY, BY_TIME = "FuseOps", "by time"
TRIALS = 100
# Bytes of a copy that no cache holds.
_LARGE = 1 << 28

Row = dict[str, Any]


@contextmanager
def fused(setting: str) -> Iterator[None]:
    """Fuse operators of every network that this process lowers meanwhile in one of the two ways."""
    from tchub.hub.networks.transform import fusion, prepare

    if setting == GREEDY:
        yield
        return
    with patch.object(prepare.transform, "FuseOps", partial(fusion.fuse_by_time, measured_rates())):
        yield


def measured_rates() -> Any:
    """Return the rates of a core of this machine: those that `tune` measures, and that of a copy in memory."""
    import numpy as np
    from tchub.hub.device.detect import detect_local
    from tchub.hub.device.measure import MeasureConfig, Measurer
    from tchub.hub.networks.transform.operator_graph import MachineRates
    from tchub.hub.search.measuring import WorkerMeasure
    from tchub.hub.search.roofline import measure_roofline

    with Measurer(detect_local(1).target, MeasureConfig(1)) as measurer:
        roofline = measure_roofline(WorkerMeasure(measurer), 1)
    assert roofline is not None, "this machine is a CPU"
    source, copy, seconds = np.ones(_LARGE, np.uint8), np.ones(_LARGE, np.uint8), []
    for _ in range(3):
        started = time.perf_counter()
        np.copyto(copy, source)
        seconds.append(time.perf_counter() - started)
    return MachineRates(roofline.flops, roofline.bandwidth, 2 * _LARGE / min(seconds))


def open_source(network: str, folder: Path) -> dict[str, Any]:
    """Return the arguments by which `tune` takes a network."""
    if network not in SMALL:
        return source_of(network)
    from scripts.benchmarks.coverage.networks import networks

    brought, options = networks()[network].bring(folder)
    return {"network": brought, **options}


def compared(network: str) -> Row:
    """Return kernels, predicted milliseconds and the seconds of the pass, of both ways."""
    import tvm
    from tchub.hub.networks.sources import open_network
    from tchub.hub.networks.tasks import extracted_tasks
    from tchub.hub.networks.transform import fusion, prepare
    from tvm.relax import transform

    rates, cpu = measured_rates(), tvm.target.Target({"kind": "llvm", "num-cores": 1})
    with tempfile.TemporaryDirectory() as folder:
        source = open_source(network, Path(folder))
        opened = open_network(source.pop("network"), **source)
        graph = prepare.for_inference(opened.imported())
    steps = [transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FoldConstant()]
    with cpu:
        mod = tvm.ir.transform.Sequential(steps)(graph)
    row: Row = {"operators": sum(len(one.operators) for one in fusion.graphs(mod))}
    counts = {}
    for setting, make in ((GREEDY, transform.FuseOps), (BY_TIME, partial(fusion.fuse_by_time, rates))):
        started = time.perf_counter()
        result = make()(mod)
        row[f"{setting}, s"] = round(time.perf_counter() - started, 3)
        row[f"{setting}, predicted ms"] = 1e3 * fusion.predicted_seconds(result, rates)
        tasks = extracted_tasks(transform.FuseTIR()(result), cpu)
        counts[setting] = Counter({identity: int(task.weight) for identity, task in tasks})
        row[f"{setting}, kernels"] = sum(counts[setting].values())
    row["exact"] = all(fusion.partition(one, rates).is_exact for one in fusion.graphs(mod))
    return row | {"equal": sum((counts[GREEDY] & counts[BY_TIME]).values())}


def tuned_with(network: str, setting: str, folder: Path) -> Row:
    """Tune a network that is fused one way; kernels of a run, and the error."""
    with fused(setting), tempfile.TemporaryDirectory() as files:
        source = open_source(network, Path(files))
        return tuned(**source, threads=1, trials=TRIALS, seed=SEED, folder=folder, compare=())


def timed_in_turn(network: str, folders: dict[str, Path]) -> Row:
    """Return the milliseconds of the network fused both ways, by setting.

    Both have the fastest program of each kernel that either run found, so that nothing but the kernels differs.
    """
    import tvm
    from tchub.hub.device.detect import detect_local
    from tchub.hub.device.extensions import vector_lanes
    from tchub.hub.networks.latency import compare
    from tchub.hub.networks.library import build_library
    from tchub.hub.networks.output_check import require
    from tchub.hub.networks.sources import open_network
    from tchub.hub.networks.transform.prepare import for_inference, lower
    from tvm.s_tir.meta_schedule.database import JSONDatabase, UnionDatabase

    names = ("database_workload.json", "database_tuning_record.json")
    paths = [[str(folder / "database" / name) for name in names] for folder in folders.values()]
    records, target = UnionDatabase(*(JSONDatabase(*pair) for pair in paths)), tvm.target.Target(detect_local(1).target)
    with tempfile.TemporaryDirectory() as files:
        source = open_source(network, Path(files))
        opened = open_network(source.pop("network"), **source)
        graph, libraries = for_inference(opened.imported(), lanes=vector_lanes(target)), {}
        for setting in folders:
            libraries[setting] = Path(files, setting.replace(" ", "-") + ".so")
            with fused(setting):
                built = build_library(lower(graph), target, records, libraries[setting])
            note(f"{setting}: {built.tuned} of {built.functions} functions with a schedule")
        result = compare(opened, lambda: libraries, threads=1, max_seconds=90)
    for check in result.checks.values():
        require(check, network)
    return {f"{name}, ms": round(1e3 * result.latencies[name].median, 4) for name in folders}


def differing(folders: dict[str, Path]) -> Row:
    """Return the microseconds of the kernels that only one of the two networks calls, as its run measured them."""
    tasks = {name: read_json(folder / "report.json")["runs"]["tuned"]["tasks"] for name, folder in folders.items()}
    known = {name: {task["id"] for task in some} for name, some in tasks.items()}
    row: Row = {}
    for name, other in ((GREEDY, BY_TIME), (BY_TIME, GREEDY)):
        own = [task for task in tasks[name] if task["weight"] and task["id"] not in known[other]]
        row[f"{name}, differing us"] = 1e6 * sum(task["weight"] * task["best"] for task in own)
    return row


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the rows come to; a ratio over 1: fusion by time is better.

    `predicted_gain` is of the networks whose kernels differ, `kernels_gain` of those kernels alone, as they were
    measured, and `gain` of the whole networks.
    """
    same = [row for row in rows if row["equal"] == row[f"{GREEDY}, kernels"] == row[f"{BY_TIME}, kernels"]]
    figures: dict[str, Any] = {
        "networks": len(rows),
        "networks_with_the_same_kernels": len(same),
        "seconds_of_the_pass": max(row[f"{BY_TIME}, s"] for row in rows),
    }
    for name, unit in (("predicted_gain", "predicted ms"), ("kernels_gain", "differing us"), ("gain", "ms")):
        measured = [row for row in rows if f"{BY_TIME}, {unit}" in row and row not in same]
        ratios = [row[f"{GREEDY}, {unit}"] / row[f"{BY_TIME}, {unit}"] for row in measured]
        figures |= {name: round(geometric_mean(ratios), 3)} if ratios else {}
    return figures


@benchmark(
    "fusion",
    click.option("--network", "networks", multiple=True, default=NETWORKS, type=click.Choice(NETWORKS)),
    CLOCK,
    work_option("fusion"),
)
def main(networks: Sequence[str], clock: Clock, work: Path) -> Document:
    """Compare two ways to fuse operators; write docs/benchmarks/fusion.json."""
    journal, rows, missing = Journal(work / "results.jsonl"), [], 0
    for network in networks:
        row = journal.get(partial(in_process, compared, network), clock, network=network)
        if row is None:
            missing += 1
            continue
        if row["equal"] < max(row[f"{GREEDY}, kernels"], row[f"{BY_TIME}, kernels"]):
            key = {"tuned": network, "trials": TRIALS, "seed": SEED}
            folders = {one: work / f"{network}-{one.replace(' ', '-')}-{TRIALS}" for one in (GREEDY, BY_TIME)}
            runs = [
                journal.get(partial(in_process, tuned_with, network, one, folder), clock, setting=one, **key)
                for one, folder in folders.items()
            ]
            if all(runs):
                own = {f"{one}, own ms": run["ms"]["tuned"] for one, run in zip(folders, runs, strict=True)}
                row |= differing(folders) | own
                make = partial(in_process, timed_in_turn, network, folders)
                row |= journal.get(make, clock, timed=network, trials=TRIALS, seed=SEED) or {}
            missing += f"{BY_TIME}, ms" not in row
        rows.append(row)
    if not rows:
        raise click.ClickException("no run is done")
    details = {"networks": rows, "not_done": lacking(missing, len(networks), "networks as a whole")}
    return summary(rows), details, [SEED]
