"""The victim of the kill tests: a real tuning session of two tiny tasks, which writes down what it saw finish.

    python -m scripts.kills.session FOLDER --trials 48 --machine workers

A measurement counts as finished when the session came back for the next one: then it is owed to the user, whatever
happens next. `FOLDER/seen.jsonl` holds these, each line on disk before the next program is awaited; `check` compares
them with the store and with the database that it exports. The same command again goes on where the last one ended.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import Journal

TARGET = {"kind": "llvm", "num-cores": 1}
BATCH = 6
# Seconds of a program of the machine `pretended`, so that a kill finds the session in all that it does.
_PRETENDED_SECONDS = 0.002


def tiny_tasks() -> list[Any]:
    """A matrix product and a softmax that compile and run in no time, and have a choice of schedules."""
    from tchub.hub.networks.tasks import make_task
    from tchub.hub.networks.workloads import operator_module
    from tchub.zoo.corpus.workloads import OperatorSpec

    specs = (
        OperatorSpec("dense", "dense", {"m": 32, "n": 24, "k": 16}),
        OperatorSpec("softmax", "softmax", {"rows": 64, "columns": 96}),
    )
    return [make_task(operator_module(spec), spec.name) for spec in specs]


def program_key(trace: Any) -> str:
    """Return a program's key within its task."""
    from tchub.hub.device.candidate import trace_json, trace_key

    return trace_key(trace_json(trace))


class Pretended:
    """Measures at once: a latency that follows from the program alone."""

    def __call__(self, jobs: Iterable[Any]) -> Iterator[Any]:
        from tchub.hub.device.measure import Measurement

        for index, (_, candidate) in enumerate(jobs):
            time.sleep(_PRETENDED_SECONDS)
            seconds = 1e-3 * (1 + int(program_key(candidate.sch.trace), 16) / 16**16)
            yield index, Measurement((seconds,), None, None, 0.0, _PRETENDED_SECONDS)


class Witness:
    """Passes another measure function on, and writes down each result that the session is done with."""

    def __init__(self, inner: Any, path: Path) -> None:
        self.inner, self.path = inner, path

    def __call__(self, jobs: Iterable[Any]) -> Iterator[Any]:
        taken: list[Any] = []

        def each() -> Iterator[Any]:
            for job in jobs:
                taken.append(job)
                yield job

        for index, measurement in self.inner(each()):
            yield index, measurement
            task, candidate = taken[index]
            line = json.dumps({"task": task.task_id, "key": program_key(candidate.sch.trace)})
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def open_run(folder: Path) -> Any:
    """Open the store of a run."""
    import tvm
    from tchub.hub.records.scope import MeasurementScope
    from tchub.hub.records.store import open_store

    scope = MeasurementScope.of("victim", "any", tvm.target.Target(TARGET), 1)
    return open_store(folder, scope, share=False)


def tune(folder: Path, trials: int, measure: Any) -> Any:
    """Tune the tiny tasks in a folder; takes up what it holds. Returns the session's view."""
    import tvm
    from tchub.hub.search.interrupt import StopFlag
    from tchub.hub.search.settings import SearchSettings
    from tchub.hub.tuning.config import TuneConfig
    from tchub.hub.tuning.session import TuningSession
    from tchub.zoo.files import locked_folder
    from tvm.s_tir import meta_schedule as ms

    search = SearchSettings(population_size=16, init_min_unmeasured=8, genetic_num_iters=1)
    config = TuneConfig(trials=trials, trials_per_iter=BATCH, search=search)
    with locked_folder(folder), open_run(folder) as store:
        watched = Witness(measure, folder / "seen.jsonl")
        model = ms.cost_model.RandomModel(seed=0)
        return TuningSession(tiny_tasks(), tvm.target.Target(TARGET), model, watched, store, config, StopFlag()).run()


@dataclass(frozen=True)
class Verdict:
    """What a folder holds after a run ended: measurements in its store, its exported database, and finished ones.

    Attributes:
        lost: finished, and not in the store; twice: finished more than once.
        unlogged: latencies of the store that the exported database does not hold, or the other way round.
    """

    trials: int
    logged: int
    seen: int
    failed: int
    lost: int
    twice: int
    unlogged: int

    @property
    def ok(self) -> bool:
        """Return True where the store holds every measurement that finished, once, and the database says the same."""
        return not (self.lost or self.twice or self.unlogged)


def check(folder: Path) -> Verdict:
    """Compare the store, the database that it exports, and what was seen."""
    from tchub.hub.device.candidate import trace_key
    from tchub.hub.records.database import FAILED_SECONDS, RunDatabase, export_json
    from tvm.s_tir import meta_schedule as ms

    with open_run(folder) as store, tempfile.TemporaryDirectory() as exported:
        programs = [program for program in store.programs() if program.strategy == "tune"]
        export_json(RunDatabase(store), Path(exported))
        records = ms.database.JSONDatabase(work_dir=exported).get_all_tuning_records()
    held = {(program.task_id, program.key) for program in programs}
    untuned = trace_key([[], []])
    seen = Counter((s["task"], s["key"]) for s in Journal(folder / "seen.jsonl").rows() if s["key"] != untuned)
    differing = Counter(_digits(min(map(float, record.run_secs))) for record in records)
    differing.subtract(_digits(min(p.measurement.latencies, default=FAILED_SECONDS)) for p in programs)
    return Verdict(
        trials=len(programs),
        logged=len(records),
        seen=len(seen),
        failed=sum(program.failure is not None for program in programs),
        lost=sum(program not in held for program in seen),
        twice=sum(count > 1 for count in seen.values()),
        unlogged=sum(map(abs, differing.values())),
    )


def _digits(latency: float) -> str:
    """Return a latency to the digits that the database's JSON keeps."""
    return f"{latency:.4e}"


def open_machine(name: str) -> AbstractContextManager[Any]:
    """What measures: `pretended`, `workers`, or the servers of an `rpc://host:port/key`."""
    from tchub.hub.device.measure import Measurer

    if name == "pretended":
        return nullcontext(Pretended())
    if name == "workers":
        return Measurer(TARGET)
    from tchub.hub.device.measure import MeasureConfig
    from tchub.hub.device.rpc import RpcConfig, RpcMeasurer
    from tchub.hub.device.rpc_session import parse_device

    address = parse_device(name)
    assert address is not None
    return RpcMeasurer(address, TARGET, MeasureConfig(), RpcConfig())


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--trials", default=48, show_default=True)
@click.option("--machine", default="workers", show_default=True, help="Or `pretended`, or rpc://host:port/key.")
def main(folder: Path, trials: int, machine: str) -> None:
    """Tune; an error of tchub's own is one line and exit code 1, as with the `tchub` command."""
    from tchub.hub.search.measuring import WorkerMeasure
    from tchub.zoo.errors import TchubError

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with open_machine(machine) as opened:
            tune(folder, trials, opened if isinstance(opened, Pretended) else WorkerMeasure(opened))
    except TchubError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
