"""A tuning run of the benchmark: one network, system and seed, its files, and what its row says.

It lives in `WORK/NETWORK/SYSTEM-SEED-TRIALS/`:

    row.json        written last and atomically: a folder without it holds a run that was cut short, and is done anew
    programs.jsonl  {task, key, trace} of each program that was its task's best for a while
    database/       MetaSchedule's JSON database

`row.json`:

    network, system, seed, trials_per_task
    tasks        [{task, name, weight}], by which the trajectory counts
    trajectory   [[seconds, task number, latency, key]], one entry a measured program, in the order of their ends;
                 seconds since tuning began; latency in seconds by the system's own measurer, null when it failed; key
                 of the program where it became its task's best, else null
    seconds      {tuning: wall time of the run's clock}
    phases       {search, model, measure}: seconds
    facts        what the system was: model, engine, batch

The clock starts when tuning does, after imports and task extraction; what a system needs besides (workers, loading its
checkpoint) is on the clock.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from scripts.benchmarks.common import kept, read_json, write_text

# Cheap ones first: a benchmark that is cut short has whole networks.
NETWORKS = ("bert-tiny", "vit-tiny", "mobilenet-v2", "resnet-50", "resnext-50", "bert-base")
SMALL = ("bert-tiny", "vit-tiny", "mobilenet-v2")
STOCK, OURS, UNTUNED = "stock", "tilenet", "untuned"
SYSTEMS = {STOCK: "stock MetaSchedule, XGBoost model", OURS: "tchub, TileNet"}
CHECKPOINT = "tilenet-epyc"
# The network's graph: as TVM imports it, or prepared by tchub.
LAYOUTS = {STOCK: "as-imported", OURS: "channels-last"}
THREADS = 1


@dataclass(frozen=True)
class Run:
    """One network, system and seed; `trials` is of a task as imported, on the average: tchub's tasks are fewer."""

    network: str
    system: str
    seed: int
    trials: int
    work: Path

    @property
    def folder(self) -> Path:
        return self.work / self.network / f"{self.system}-{self.seed}-{self.trials}"

    @property
    def label(self) -> str:
        return f"{self.network} {self.system} seed {self.seed}"

    def row(self) -> dict[str, Any] | None:
        """What it came to; None while it is not done."""
        path = self.folder / "row.json"
        return read_json(path) if path.is_file() else None

    def programs(self) -> list[dict[str, str]]:
        """Programs that were their task's best for a while."""
        return [json.loads(line) for line in (self.folder / "programs.jsonl").read_text().splitlines()]


@dataclass
class Workload:
    """A network in TVM: MetaSchedule's tasks, the same as tchub describes them, heaviest first; this machine."""

    mod: Any
    extracted: list[Any]
    tasks: list[Any]
    local: Any
    target: Any


def load_workload(network: str, layout: str) -> Workload:
    """Import a network and extract the tasks of its graph in a layout."""
    import tvm
    from tchub.hub.device.detect import detect_local
    from tchub.hub.networks.prepare import prepare
    from tchub.hub.networks.tasks import from_extracted
    from tchub.hub.networks.workloads import load_network
    from tchub.zoo.tvm_import import import_tensor_intrinsics
    from tvm.s_tir.meta_schedule import relax_integration

    import_tensor_intrinsics()
    local = detect_local(THREADS)
    target = tvm.target.Target(local.target)
    mod = prepare(load_network(network).imported(), layout)
    extracted = list(relax_integration.extract_tasks(mod, target))
    return Workload(mod, extracted, from_extracted(extracted, network), local, target)


@dataclass
class Recorder:
    """Every result as it came: (seconds since the clock started, task id, latency in seconds or None, trace)."""

    results: list[tuple[float, str, float | None, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def now(self) -> float:
        """Seconds on the clock."""
        return time.perf_counter() - self.started

    def add(self, at: float, task_id: str, run_secs: Sequence[Any] | None, trace: Any) -> None:
        """Take one result; no `run_secs`: the program failed."""
        latency = median(map(float, run_secs)) if run_secs else None
        self.results.append((at, task_id, latency, trace))

    def measured(self, measure: Any) -> Any:
        """A session's measure function that is recorded."""

        def recorded(jobs: Sequence[Any]) -> Iterator[Any]:
            for index, measurement in measure(jobs):
                task, candidate = jobs[index]
                self.add(self.now(), task.task_id, measurement.latencies, candidate.sch.trace)
                yield index, measurement

        return recorded

    def trajectory(self, tasks: Sequence[Any]) -> tuple[list[list[Any]], list[dict[str, str]]]:
        """The trajectory, and the programs that were their task's best for a while."""
        from tchub.hub.device.candidate import trace_json, trace_key

        number = {task.task_id: i for i, task in enumerate(tasks)}
        best: dict[str, float] = {}
        results, programs = [], {}
        for at, task_id, latency, trace in sorted(self.results, key=lambda result: result[0]):
            key = None
            if latency is not None and latency < best.get(task_id, float("inf")):
                best[task_id] = latency
                plain = trace_json(trace)
                key = trace_key(plain)
                programs[task_id, key] = {"task": task_id, "key": key, "trace": json.dumps(plain)}
            results.append([round(at, 4), number[task_id], latency, key])
        return results, list(programs.values())


@dataclass
class Outcome:
    """What a system tells of its run besides the trajectory."""

    recorder: Recorder
    seconds: float
    phases: dict[str, float]
    facts: dict[str, Any]


def execute(run: Run) -> None:
    """Do the run and write its row; for a process of its own."""
    from scripts.benchmarks.tuning.stock import tune_stock

    shutil.rmtree(run.folder, ignore_errors=True)  # cut short: a run's clock cannot be taken up
    run.folder.mkdir(parents=True)
    work = load_workload(run.network, LAYOUTS[run.system])

    def imported() -> int:
        return len((work if run.system == STOCK else load_workload(run.network, LAYOUTS[STOCK])).tasks)

    count = kept(run.folder.parent / "imported_tasks.json", imported)
    outcome = (tune_stock if run.system == STOCK else tune_ours)(run, work, run.trials * count)
    trajectory, programs = outcome.recorder.trajectory(work.tasks)
    write_text(run.folder / "programs.jsonl", "".join(json.dumps(program) + "\n" for program in programs))
    row = {
        **{name: getattr(run, name) for name in ("network", "system", "seed")},
        "trials_per_task": run.trials,
        "tasks": [{"task": t.task_id, "name": t.name, "weight": t.weight} for t in work.tasks],
        "trajectory": trajectory,
        "seconds": {"tuning": outcome.seconds},
        "phases": {name: outcome.phases[name] for name in ("search", "model", "measure")},
        "facts": outcome.facts,
    }
    write_text(run.folder / "row.json", json.dumps(row))


def tune_ours(run: Run, work: Workload, budget: int) -> Outcome:
    """Tune with `TuningSession`, which is what `hub.tune` runs."""
    import torch  # noqa: F401 (imported before the clock starts, as TVM is)
    import xgboost  # noqa: F401
    from tchub.hub.device.measure import MeasureConfig, Measurer
    from tchub.hub.records.database import export_json
    from tchub.hub.records.scope import MeasurementScope
    from tchub.hub.records.store import open_store
    from tchub.hub.search.engines import SearchSettings
    from tchub.hub.search.interrupt import StopFlag
    from tchub.hub.search.measuring import WorkerMeasure
    from tchub.hub.search.models import choose_model
    from tchub.hub.tuning.config import TuneConfig
    from tchub.hub.tuning.session import TuningSession

    recorder, engine = Recorder(), SearchSettings().engine
    # The judge times untuned programs; what earlier runs measured would be other systems' work.
    config = TuneConfig(trials=budget, seed=run.seed, untuned=False, reuse=False)
    scope = MeasurementScope.of_device(work.local)
    with (
        open_store(run.folder, scope, share=False) as store,
        Measurer(work.local.target, MeasureConfig(threads=THREADS)) as measurer,
    ):
        model = choose_model(CHECKPOINT, seed=run.seed)
        measure = recorder.measured(WorkerMeasure(measurer))
        session = TuningSession(work.tasks, work.target, model.make(), measure, store, config, StopFlag())
        view = session.run()
        seconds = recorder.now()
        export_json(session.database, run.folder / "database")
    facts = {"model": model.name, "update": model.update, "engine": engine, "batch": view.batch}
    return Outcome(recorder, seconds, dict(view.phases), facts)
