"""Measuring picked candidates: paid measurements are reused, time is counted, hopeless runs are stopped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..device.errors import MeasurementFailureRateError
from ..search.errors import InterruptedRunError
from ..search.interrupt import StopFlag
from .pool import CandidatePool

if TYPE_CHECKING:
    from ..device.candidate import Candidate
    from ..device.measure import Measurement

FAILURE_RATE, FAILURE_MINIMUM = 0.9, 16


class MeasurerLike(Protocol):
    """What measures candidates; `hub.device.measure.Measurer` is one."""

    def measure(self, candidates: Iterable[Candidate]) -> Iterable[tuple[Candidate, Measurement]]:
        """Yield each candidate with its measurement, in any order."""
        ...

    def know(self, task_id: str, latency: float) -> None:
        """Be told of a latency measured earlier."""
        ...


class JournalLike(Protocol):
    """What keeps paid measurements."""

    def get(self, task_id: str, key: str) -> Measurement | None:
        """The measurement of a program, if it was paid for."""
        ...

    def put(self, candidate: Candidate, measurement: Measurement) -> None:
        """Keep a measurement, on disk when this returns."""
        ...

    def forget_failure(self, task_id: str, key: str) -> None:
        """Measure a program anew that failed."""
        ...


def _timed(measurement: Measurement) -> Measurement:
    """A measurement whose latency is no positive number is a failure: nothing can be learnt from it, or stored."""
    if measurement.error is None and not 0 < measurement.latency < math.inf:
        return replace(measurement, latencies=(), error="run", message=f"it took {measurement.latency} s")
    return measurement


class PoolMeasuring:
    """Measures places of a pool, through the journal.

    Args:
        pool: the candidates.
        rebuild: makes a measurable candidate of a place in the pool.
        open_measurer: starts the measurer; called at the first program that the journal lacks.
        journal: paid measurements.
        stop: asks the run to end.
        on_result: called after every program with its measurement.

    Attributes:
        results: the measurement of each measured place.
        reused: how many of them came from the journal.
    """

    def __init__(
        self,
        pool: CandidatePool,
        rebuild: Callable[[int], Candidate],
        open_measurer: Callable[[], AbstractContextManager[Any]],
        journal: JournalLike,
        stop: StopFlag,
        on_result: Callable[[Measurement], None] = lambda measurement: None,
    ) -> None:
        self._pool, self._rebuild, self._open, self._journal = pool, rebuild, open_measurer, journal
        self._stop, self._on_result = stop, on_result
        self._stack = ExitStack()
        self._measurer: MeasurerLike | None = None
        self.results: dict[int, Measurement] = {}
        self.reused = 0
        # Sums over `results`, asked for after every program.
        self._seconds, self._failed = 0.0, 0

    def __enter__(self) -> PoolMeasuring:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def seconds(self) -> float:
        """Seconds of building and running that the measured programs cost, whenever they were paid."""
        return self._seconds

    def paid_seconds(self, indices: Sequence[int]) -> float:
        """What places of the pool cost when they were measured; infinite where one was not."""
        paid = [self._journal.get(*self._name(index)) for index in indices]
        return sum(math.inf if one is None else one.cost_seconds for one in paid)

    def latency(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """(k,) float64 seconds of measured places; NaN where the program failed."""
        return np.array([self.results[int(i)].latency for i in indices], dtype=np.float64)

    def measure(self, indices: Sequence[int] | np.ndarray, seconds: float = math.inf) -> list[int]:
        """Measure places of the pool until they or the seconds run out.

        Args:
            indices: what to measure, in this order.
            seconds: of building and running; a program that was started is finished, and one that was paid for
                before costs none.

        Returns:
            The places that were measured, sorted.

        Raises:
            MeasurementFailureRateError: nearly every program failed.
            InterruptedRunError: the user stopped it; what was measured is in the journal.
        """
        limit = self.seconds + seconds
        done: list[int] = []
        for index, measurement in self._results_of([int(i) for i in indices], limit):
            self._note(index, measurement)
            done.append(index)
            self._on_result(measurement)
            self._check_failures()
        if self._stop.requested:
            if self._hopeless():
                self._forget_failures()
            raise InterruptedRunError(
                f"interrupted after {len(self.results)} measured programs",
                remedy="run the same command again: it goes on from there",
                measured=len(self.results),
            )
        return sorted(done)

    def _note(self, index: int, measurement: Measurement) -> None:
        before = self.results.get(index)
        self.results[index] = measurement
        self._seconds += measurement.cost_seconds - (before.cost_seconds if before else 0.0)
        self._failed += (measurement.error is not None) - (before is not None and before.error is not None)

    def check_any(self) -> None:
        """Raise MeasurementFailureRateError when no program is valid."""
        if self.results and self._failed == len(self.results):
            raise self._too_many_failures()

    def _results_of(self, indices: list[int], limit: float) -> Iterator[tuple[int, Measurement]]:
        place: dict[tuple[str, str], int] = {}

        def missing() -> Iterator[Candidate]:
            for index in fresh:
                if self.seconds >= limit or self._stop.requested:
                    return
                candidate = self._rebuild(index)
                place[candidate.task_id, candidate.key] = index
                yield candidate

        fresh: list[int] = []
        for index in indices:
            paid = self._journal.get(*self._name(index))
            if paid is None:
                fresh.append(index)
            else:
                self.reused += 1
                yield index, _timed(paid)
        if not fresh or self.seconds >= limit or self._stop.requested:
            return
        for candidate, found in self._stop.each(self._started().measure(missing())):
            measurement = _timed(found)
            if self._stop.requested and measurement.error is not None:
                continue  # Ctrl-C may have reached a worker too: that failure is not the program's
            self._journal.put(candidate, measurement)
            yield place[candidate.task_id, candidate.key], measurement

    def _name(self, index: int) -> tuple[str, str]:
        entry = self._pool.entries[index]
        return self._pool.tasks[entry.task].task_id, entry.key

    def _started(self) -> MeasurerLike:
        if self._measurer is not None:
            return self._measurer
        measurer: MeasurerLike = self._stack.enter_context(self._open())
        for index, result in self.results.items():
            if result.error is None:
                measurer.know(self._name(index)[0], result.latency)
        self._measurer = measurer
        return measurer

    def _check_failures(self) -> None:
        """Counts the journal's failures too (the measurer knows its own only)."""
        if len(self.results) >= FAILURE_MINIMUM and self._hopeless():
            raise self._too_many_failures()

    def _hopeless(self) -> bool:
        return self._failed > FAILURE_RATE * len(self.results)

    def _forget_failures(self) -> None:
        """Where nearly everything fails, the machine does, not the programs: once it is mended they are tried again."""
        for index, result in self.results.items():
            if result.error is not None:
                self._journal.forget_failure(*self._name(index))

    def _too_many_failures(self) -> MeasurementFailureRateError:
        self._forget_failures()
        failed = [r for r in self.results.values() if r.error is not None]
        commonest, count = Counter(f"{r.error}: {r.message}" for r in failed).most_common(1)[0]
        return MeasurementFailureRateError(
            f"{len(failed)} of {len(self.results)} programs failed, {count} of them with: {commonest}",
            remedy="run `tchub doctor`; once the machine is mended, the same command tries these programs again",
            failed=len(failed),
            total=len(self.results),
            commonest=commonest,
        )
