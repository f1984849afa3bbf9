"""The victim of the kill tests: a real tuning session of two tiny tasks, which writes down what it saw finish.

    python -m scripts.kills.session FOLDER --trials 48 --machine workers

A measurement counts as finished when the session came back for the next one: then it is owed to the user, whatever
happens next. `FOLDER/seen.jsonl` holds these, each line on disk before the next program is awaited; `check` compares
them with the database and with `trials.jsonl`. The same command again goes on where the last one ended.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

TARGET = {"kind": "llvm", "num-cores": 1}
BATCH = 6
# Seconds of a program of the machine `pretended`, so that a kill finds the session in all that it does.
_PRETENDED_SECONDS = 0.002


def tiny_tasks() -> list[Any]:
    """A matrix product and a softmax that compile and run in no time, and have a choice of schedules."""
    from tchub.hub.networks.operators import operator_module
    from tchub.hub.networks.tasks import make_task
    from tchub.zoo.corpus.workloads import OperatorSpec

    specs = (
        OperatorSpec("dense", "dense", {"m": 32, "n": 24, "k": 16}),
        OperatorSpec("softmax", "softmax", {"rows": 64, "columns": 96}),
    )
    return [make_task(operator_module(spec), spec.name) for spec in specs]


def program_key(trace: Any) -> str:
    """A program's name within its task."""
    from tchub.hub.device.candidate import trace_json, trace_key

    return trace_key(trace_json(trace))


class Pretended:
    """Measures at once: a latency that follows from the program alone."""

    def __call__(self, jobs: Sequence[Any]) -> Iterator[Any]:
        from tchub.hub.search.measuring import Measured
        from tvm.s_tir import meta_schedule as ms

        for index, (_, candidate) in enumerate(jobs):
            time.sleep(_PRETENDED_SECONDS)
            seconds = 1e-3 * (1 + int(program_key(candidate.sch.trace), 16) / 16**16)
            yield Measured(index, ms.runner.RunnerResult([seconds], None), 0.0, _PRETENDED_SECONDS)


class Witness:
    """Passes another measure function on, and writes down each result that the session is done with."""

    def __init__(self, inner: Any, path: Path) -> None:
        self.inner, self.path = inner, path

    def __call__(self, jobs: Sequence[Any]) -> Iterator[Any]:
        for found in self.inner(jobs):
            yield found
            task, candidate = jobs[found.index]
            self._write(task.task_id, program_key(candidate.sch.trace), found.result.error_msg)

    def _write(self, task_id: str, key: str, error: Any) -> None:
        line = json.dumps({"task": task_id, "key": key, "failed": error is not None})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def workers() -> AbstractContextManager[Any]:
    """tchub's own measurer, on this machine."""
    from tchub.hub.device.measure import Measurer

    return Measurer(TARGET)


def tune(folder: Path, trials: int, measure: Any) -> Any:
    """Tune the tiny tasks in a folder; takes up what it holds. Returns the session's view."""
    import tvm
    from tchub.hub.records.run_folder import locked
    from tchub.hub.search.interrupt import StopFlag
    from tchub.hub.search.task_search import SearchSettings
    from tchub.hub.tuning.session import SessionSettings, TuningSession
    from tvm.s_tir import meta_schedule as ms

    search = SearchSettings(population_size=16, init_min_unmeasured=8, genetic_num_iters=1)
    settings = SessionSettings(trials=trials, batch=BATCH, search=search)
    target = tvm.target.Target(TARGET)
    with locked(folder):
        watched = Witness(measure, folder / "seen.jsonl")
        model = ms.cost_model.RandomModel(seed=0)
        return TuningSession(tiny_tasks(), target, model, watched, folder, settings, StopFlag()).run()


@dataclass(frozen=True)
class Verdict:
    """What a folder holds after a run ended.

    Attributes:
        trials: measurements of candidates in the database; logged: in `trials.jsonl`; seen: finished, by the witness.
        failed: of the database's, those that did not run.
        lost: finished, and not in the database.
        twice: more than once in the database.
        unlogged: latencies of the database that the log does not hold, or the other way round.
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
        """Whether the database holds every measurement that finished, once, and the log says the same."""
        return not (self.lost or self.twice or self.unlogged)


def check(folder: Path) -> Verdict:
    """Compare the database, the log and what was seen."""
    from tchub.hub.records.records import FAILED_SECONDS, open_database
    from tchub.hub.records.trials import TrialLog, latency_of

    records = list(open_database(folder / "database").get_all_tuning_records())
    times = [[float(x) for x in record.run_secs or ()] for record in records]
    valid = [seconds if min(seconds, default=FAILED_SECONDS) < FAILED_SECONDS else [] for seconds in times]
    held = Counter((_module_hash(record.workload.mod), program_key(record.trace)) for record in records)
    hashes = {task.task_id: _module_hash(task.mod) for task in tiny_tasks()}
    untuned = program_key_of_nothing()
    seen = {(hashes[s["task"]], s["key"]) for s in _lines(folder / "seen.jsonl") if s["key"] != untuned}
    tuned = TrialLog(folder / "trials.jsonl").tuned
    differing = Counter(_mark(latency_of(s)) for s in valid)
    differing.subtract(_mark(trial.latency) for trial in tuned)
    return Verdict(
        trials=len(records),
        logged=len(tuned),
        seen=len(seen),
        failed=sum(not seconds for seconds in valid),
        lost=sum(program not in held for program in seen),
        twice=sum(count > 1 for count in held.values()),
        unlogged=sum(map(abs, differing.values())),
    )


def program_key_of_nothing() -> str:
    """The key of a task as extracted."""
    from tchub.hub.device.candidate import trace_key

    return trace_key([[], []])


def _module_hash(mod: Any) -> str:
    from tvm.s_tir.meta_schedule.utils import shash2hex

    return shash2hex(mod)


def _mark(latency: float | None) -> str:
    """A latency to the digits that the database's JSON keeps."""
    return "failed" if latency is None else f"{latency:.4e}"


def _lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines: a kill may have cut the last one, which then was not finished."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def open_machine(name: str) -> AbstractContextManager[Any]:
    """What measures: `pretended`, `workers`, or the servers of an `rpc://host:port/key`."""
    if name == "pretended":
        return nullcontext(Pretended())
    if name == "workers":
        return workers()
    from tchub.hub.device.rpc import RpcMeasurer
    from tchub.hub.device.rpc_address import parse_device

    address = parse_device(name)
    assert address is not None
    return RpcMeasurer(address, TARGET)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--trials", default=48, show_default=True)
@click.option("--machine", default="workers", show_default=True, help="Or `pretended`, or rpc://host:port/key.")
def main(folder: Path, trials: int, machine: str) -> None:
    """Tune; an error of tchub's own is one line and exit code 1, as with the `tchub` command."""
    from tchub.hub.search.measuring import MeasureHere
    from tchub.zoo.errors import TchubError

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with open_machine(machine) as opened:
            tune(folder, trials, opened if isinstance(opened, Pretended) else MeasureHere(opened))
    except TchubError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
