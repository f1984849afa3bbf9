"""Stand-ins for a machine: a measure function, and a MetaSchedule builder and runner, that compile nothing."""

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tchub.hub.device.candidate import trace_json, trace_key
from tchub.hub.device.measure import Measurement
from tchub.hub.records.scope import MeasurementScope
from tchub.hub.records.store import FILE, MeasuredProgram, RunStore, open_store
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.settings import DecisionSettings, SearchSettings
from tchub.hub.tuning.config import TuneConfig
from tchub.hub.tuning.session import TuningSession
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

SMALL_SEARCH = SearchSettings(16, init_min_unmeasured=8, genetic_num_iters=1, decisions=DecisionSettings(128, 1, 1, 64))
SCOPE = MeasurementScope("epyc-turin", "EPYC", "llvm", 1, "0.27.0")


def key_of(candidate: Any) -> str:
    """A candidate's name: the hash of its trace."""
    return trace_key(trace_json(candidate.sch.trace))


def latency_of_key(key: str) -> float:
    """A latency between 1 and 2 ms that follows from the program alone."""
    return 1e-3 * (1 + int(key, 16) / 16**16)


class FakeMeasure:
    """Measures by `latency_of_key`.

    Args:
        fails: which candidates fail, by their number in all.
        after: called after each program with their number.
        failure: what is said of those that fail.
    """

    def __init__(
        self,
        fails: Callable[[int], bool] = lambda n: False,
        after: Callable[[int], None] = lambda n: None,
        failure: str = "run: the program divided by zero",
    ) -> None:
        self.fails, self.after, self.failure = fails, after, failure
        self.count = 0
        self.keys: list[str] = []

    def __call__(self, jobs: Iterable[Any]) -> Iterator[tuple[int, Measurement]]:
        for index, (_, candidate) in enumerate(jobs):
            key = key_of(candidate)
            kind, _, message = self.failure.partition(": ")
            error = (kind, message) if self.fails(self.count) else (None, None)
            times = () if error[0] else (latency_of_key(key),)
            self.count += 1
            self.keys.append(key)
            yield index, Measurement(times, *error, 0.01, 0.001)
            self.after(self.count)


def open_session(
    folder: Path, tasks: Sequence[Any], target: Any, measure: Any, *, model: Any = None, share: bool = False,
    stop: StopFlag | None = None, scope: MeasurementScope = SCOPE, roofline: Any = None, **settings: Any,
) -> TuningSession:  # fmt: skip
    """A session in a folder as `tune` makes it, with a small search: 12 trials, rounds of 4."""
    config = TuneConfig(**{"trials": 12, "trials_per_iter": 4, "search": SMALL_SEARCH, **settings})
    store = open_store(folder, replace(scope, target=str(target)), share=share)
    model = model or ms.cost_model.RandomModel(seed=0)
    return TuningSession(tasks, target, model, measure, store, config, stop or StopFlag(), roofline=roofline)


def programs_in(folder: Path, strategy: str) -> list[MeasuredProgram]:
    """The programs of a folder's store, of any scope."""
    rows = sqlite3.connect(folder / FILE).execute("SELECT facts FROM scopes").fetchall()
    programs: list[MeasuredProgram] = []
    for (facts,) in rows:
        with RunStore(folder / FILE, MeasurementScope(**json.loads(facts))) as store:
            programs += [program for program in store.programs() if program.strategy == strategy]
    return programs


@derived_object
class FakeBuilder(ms.builder.PyBuilder):
    """Writes an empty artifact for each program; every fifth build fails if asked to."""

    def __init__(self, failing: bool = False) -> None:
        super().__init__()
        self.failing = failing
        self.built = 0

    def build(self, build_inputs: list[Any]) -> list[Any]:
        """One artifact an input."""
        results = []
        for _ in build_inputs:
            self.built += 1
            if self.failing and self.built % 5 == 0:
                results.append(ms.builder.BuilderResult(None, "the compiler ran out of registers"))
                continue
            path = Path(tempfile.mkdtemp()) / "program.so"
            path.touch()
            results.append(ms.builder.BuilderResult(str(path), None))
        return results


@derived_object
class _Done(ms.runner.PyRunnerFuture):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return ms.runner.RunnerResult([self.seconds], None)


@derived_object
class FakeRunner(ms.runner.PyRunner):
    """Each program is a little faster than the one before; remembers the artifacts and devices it saw.

    Args:
        after: called with the number of programs so far, before each.
    """

    def __init__(self, after: Callable[[int], None] = lambda n: None) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []
        self.after = after

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        """One future an input."""
        futures = []
        for item in runner_inputs:
            self.seen.append((str(item.artifact_path), str(item.device_type)))
            self.after(len(self.seen))
            futures.append(_Done(1e-3 / len(self.seen)))
        return futures
