"""Measuring a pool: what it cost and how much failed is kept as sums, for they are asked for at every program."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from adapt_kit import make_task
from tchub.hub.adaptation.measure import PoolMeasuring
from tchub.hub.adaptation.pool import CandidatePool, PoolEntry
from tchub.hub.device.measurement import Measurement
from tchub.hub.device.candidate import Candidate
from tchub.hub.search.interrupt import StopFlag

TASK = make_task(0)
READS = {"cost_seconds", "error"}


class Watched(Measurement):
    """Counts how often it is asked what it cost, or whether it failed."""

    reads = 0

    def __getattribute__(self, name: str) -> Any:
        Watched.reads += name in READS
        return super().__getattribute__(name)


class Journal:
    """Knows the programs before `paid`."""

    def __init__(self, paid: int) -> None:
        self.paid = paid

    def get(self, task_id: str, key: str) -> Measurement | None:
        return outcome(int(key)) if int(key) < self.paid else None

    def put(self, candidate: Candidate, measurement: Measurement) -> None: ...

    def forget_failure(self, task_id: str, key: str) -> None: ...


class Machine:
    """Measures whatever it is given."""

    def measure(self, candidates):
        yield from ((candidate, outcome(int(candidate.key))) for candidate in candidates)

    def know(self, task_id: str, latency: float) -> None: ...


@contextmanager
def machine():
    yield Machine()


def outcome(place: int) -> Measurement:
    """Every third program fails, and each costs something else."""
    failed = place % 3 == 0
    return Watched(() if failed else (1e-3,), "build" if failed else None, None, 0.25 * place, 0.5)


def measuring(count: int, paid: int) -> PoolMeasuring:
    pool = CandidatePool((TASK,), tuple(PoolEntry(0, str(i), "", "random") for i in range(count)))
    rebuild = lambda i: Candidate(TASK.task_id, str(i), "", "random", None)  # noqa: E731
    return PoolMeasuring(pool, rebuild, machine, Journal(paid), StopFlag())


@pytest.mark.parametrize("paid", [0, 200, 400])
def test_what_a_program_costs_is_looked_at_as_often_in_a_large_run_as_in_a_small_one(paid: int):
    """From the journal, from the machine, or both: once the sums were made anew at every program."""
    run = measuring(400, paid)
    Watched.reads = 0
    run.measure(range(400), seconds=1e9)
    assert Watched.reads < 400 * 10
    assert run.seconds == pytest.approx(sum(one.cost_seconds for one in run.results.values()))


def test_a_program_that_is_measured_again_is_paid_once():
    run = measuring(30, 30)
    run.measure(range(30))
    before = run.seconds
    run.measure(np.arange(10))
    assert run.seconds == before == sum(one.cost_seconds for one in run.results.values())
    run.check_any()
