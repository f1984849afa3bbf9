"""Stand-ins for a machine: a measure function, and a MetaSchedule builder and runner, that compile nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tchub.hub.device.candidate import trace_json, trace_key
from tchub.hub.search.measuring import Measured
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms


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

    def __call__(self, jobs: Sequence[Any]) -> Iterator[Measured]:
        for index, (_, candidate) in enumerate(jobs):
            key = key_of(candidate)
            failed = self.fails(self.count)
            result = (
                ms.runner.RunnerResult(None, self.failure)
                if failed
                else ms.runner.RunnerResult([latency_of_key(key)], None)
            )
            self.count += 1
            self.keys.append(key)
            yield Measured(index, result, 0.01, 0.001)
            self.after(self.count)


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
