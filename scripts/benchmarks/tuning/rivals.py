"""One run of the tuning benchmark in a process of its own: MetaSchedule as it ships, or tchub's session.

    python -m scripts.benchmarks.tuning.rivals RUN      # RUN as `runs.Run.arguments` gives it; `run.py` starts it

All systems of one layout tune the same tasks, extracted by TVM, on one thread a program. The clock starts when tuning
does, after imports and task extraction; what a system needs besides (workers, loading its checkpoint) is on the clock.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from scripts.benchmarks.tuning.runs import SYSTEMS, THREADS, Run, note, read_json, write_json

if TYPE_CHECKING:
    from scripts.benchmarks.tuning.runs import Run


_STARTED = time.perf_counter()


_NOTE_EVERY = 16


@dataclass
class Workload:
    """A network in TVM.

    Attributes:
        extracted: MetaSchedule's tasks; tasks: the same as tchub describes them, heaviest first.
        local: this machine; target: its `tvm.target.Target`.
    """

    mod: Any
    extracted: list[Any]
    tasks: list[Any]
    local: Any
    target: Any


def load_workload(network: str, layout: str) -> Workload:
    """Import a network and extract the tasks of its graph in a layout."""
    import tvm
    from tchub.hub.device.detect import detect_local
    from tchub.hub.networks.tasks import from_extracted
    from tchub.hub.networks.workloads import load_network
    from tchub.zoo.tvm_import import import_tensor_intrinsics
    from tvm.s_tir.meta_schedule import relax_integration

    import_tensor_intrinsics()
    local = detect_local(THREADS)
    target = tvm.target.Target(local.target)
    mod = load_network(network).relax_module(layout)
    extracted = list(relax_integration.extract_tasks(mod, target))
    return Workload(mod, extracted, from_extracted(extracted, network), local, target)


@dataclass
class Recorder:
    """Every result as it came, with the seconds since the clock started; traces become text after the clock stopped.

    Attributes:
        results: (seconds, task id, latency in seconds or None, trace).
    """

    run: Run
    budget: int
    results: list[tuple[float, str, float | None, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def now(self) -> float:
        """Seconds on the clock."""
        return time.perf_counter() - self.started

    def add(self, at: float, task_id: str, run_secs: Sequence[Any] | None, trace: Any) -> None:
        """Take one result; no `run_secs`: the program failed."""
        latency = median(map(float, run_secs)) if run_secs else None
        self.results.append((at, task_id, latency, trace))
        if len(self.results) % _NOTE_EVERY == 0:
            note(f"{self.run.label}: {len(self.results)} of {self.budget} trials in {at:.0f} s")

    def measured(self, measure: Any) -> Any:
        """A session's measure function that is recorded."""

        def recorded(jobs: Sequence[Any]) -> Iterator[Any]:
            for index, measurement in measure(jobs):
                task, candidate = jobs[index]
                self.add(self.now(), task.task_id, measurement.latencies, candidate.sch.trace)
                yield index, measurement

        return recorded

    def told(self, tasks: Sequence[Any]) -> tuple[list[list[Any]], list[dict[str, str]]]:
        """The trajectory, and the programs that were their task's best for a while; see `tuning_runs`."""
        from tchub.hub.device.candidate import trace_json, trace_key

        number = {task.task_id: i for i, task in enumerate(tasks)}
        best: dict[str, float] = {}
        trajectory, programs = [], {}
        for at, task_id, latency, trace in sorted(self.results, key=lambda result: result[0]):
            key = None
            if latency is not None and latency < best.get(task_id, float("inf")):
                best[task_id] = latency
                plain = trace_json(trace)
                key = trace_key(plain)
                programs[task_id, key] = {"task": task_id, "key": key, "trace": json.dumps(plain)}
            trajectory.append([round(at, 4), number[task_id], latency, key])
        return trajectory, list(programs.values())


@dataclass
class Outcome:
    """What a system tells of its run besides the trajectory; see `tuning_runs`."""

    recorder: Recorder
    seconds: float
    phases: dict[str, float]
    facts: dict[str, Any]
    adaptation: dict[str, Any] | None = None


def _imported_tasks(run: Run, work: Workload | None) -> int:
    """How many tasks the network has as TVM imports it; counted once."""
    path = run.folder.parent / "imported_tasks.json"
    if not path.is_file():
        write_json(path, len((work or load_workload(run.network, "as-imported")).tasks))
    return read_json(path)


def execute(run: Run) -> dict[str, Any]:
    """Do the run; returns its row, with the programs written."""
    from scripts.benchmarks.tuning.stock import tune_stock

    if run.folder.exists():  # cut short: a run's clock cannot be taken up
        shutil.rmtree(run.folder)
    run.folder.mkdir(parents=True)
    layout = SYSTEMS[run.system].layout
    work = load_workload(run.network, layout)
    budget = run.trials * _imported_tasks(run, work if layout == "as-imported" else None)
    prepared = time.perf_counter() - _STARTED
    note(f"{run.label}: {len(work.tasks)} tasks, {budget} trials; imported in {prepared:.0f} s")
    tune = tune_stock if SYSTEMS[run.system].checkpoint is None and run.system != "tlp" else tune_ours
    outcome = tune(run, work, budget)
    trajectory, programs = outcome.recorder.told(work.tasks)
    (run.folder / "programs.jsonl").write_text("".join(json.dumps(program) + "\n" for program in programs))
    return {
        "network": run.network,
        "system": run.system,
        "seed": run.seed,
        "trials_per_task": run.trials,
        "tasks": [{"task": t.task_id, "name": t.name, "weight": t.weight} for t in work.tasks],
        "trajectory": trajectory,
        "seconds": {
            "tuning": outcome.seconds,
            "prepare": prepared,
            "process": time.perf_counter() - _STARTED,
        },
        "phases": outcome.phases,
        "adaptation": outcome.adaptation,
        "facts": outcome.facts,
    }


def main() -> None:
    """Do the run of the first argument and write its row."""
    run = Run.from_arguments(sys.argv[1])
    row = execute(run)
    write_json(run.folder / "row.json", row)
    failed = sum(latency is None for _, _, latency, _ in row["trajectory"])
    count = len(row["trajectory"])
    note(f"{run.label}: done, {count} trials, {failed} failed, in {row['seconds']['tuning']:.0f} s")


if __name__ == "__main__":
    main()


def tune_ours(run: Run, work: Workload, budget: int) -> Outcome:
    """Tune with `TuningSession`, which is what `hub.tune` runs."""
    import torch  # noqa: F401 (imported before the clock starts, as TVM is)
    import xgboost  # noqa: F401
    from tchub.hub.device.measure import Measurer
    from tchub.hub.device.measurement import MeasureConfig
    from tchub.hub.records.database import export_json
    from tchub.hub.records.scope import MeasurementScope
    from tchub.hub.records.store import open_store
    from tchub.hub.search.engines import SearchSettings
    from tchub.hub.search.interrupt import StopFlag
    from tchub.hub.search.measuring import WorkerMeasure
    from tchub.hub.search.models import choose_model
    from tchub.hub.tuning.config import TuneConfig
    from tchub.hub.tuning.session import TuningSession

    from scripts.benchmarks.tuning.rivals import Outcome, Recorder

    system = SYSTEMS[run.system]
    checkpoint = run.tlp if run.system == "tlp" else system.checkpoint
    adaptation = None
    if system.adapted:
        checkpoint, adaptation = _adapt(run, str(checkpoint))
    recorder = Recorder(run, budget)
    search = SearchSettings(engine=system.engine)
    # The judge times untuned programs; what earlier runs measured would be other systems' work.
    config = TuneConfig(trials=budget, seed=run.seed, search=search, untuned=False, reuse=False)
    scope = MeasurementScope.of_device(work.local)
    with (
        open_store(run.folder, scope, share=False) as store,
        Measurer(work.local.target, MeasureConfig(threads=THREADS)) as measurer,
    ):
        model = choose_model(checkpoint, seed=run.seed)
        session = TuningSession(
            work.tasks,
            work.target,
            model.make(),
            recorder.measured(WorkerMeasure(measurer)),
            store,
            config,
            StopFlag(),
        )
        view = session.run()
        seconds = recorder.now()
        export_json(session.database, run.folder / "database")
    facts = {"model": model.name, "update": model.update, "engine": system.engine, "batch": view.batch}
    return Outcome(recorder, seconds, dict(view.phases), facts, adaptation)


def _adapt(run: Run, checkpoint: str) -> tuple[str, dict[str, Any]]:
    """Adapt to the network with a 10% budget; returns the checkpoint to tune with and what it cost."""
    from tchub import hub
    from tchub.hub.adaptation.config import AdaptConfig

    note(f"{run.label}: adapting")
    start = time.perf_counter()
    config = AdaptConfig(budget="10%", seed=run.seed, threads=THREADS, out=run.folder / "adapt")
    found = hub.adapt(checkpoint, run.network, config=config)
    name = f"{found.name}@{found.version}" if found.version else found.name
    cost = {
        "seconds": time.perf_counter() - start,
        "trials": found.measurements.measured,
        "decision": found.judgement.guard.decision,
        "checkpoint": name,
    }
    return name, cost
