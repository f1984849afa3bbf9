"""The tuning curve: the sum of the tasks' best programs, trial by trial."""

from __future__ import annotations

from tchub.hub.device.measurement import Measurement
from tchub.hub.records.store import MeasuredProgram
from tchub.hub.tuning.progress import curve


def trial(task: str, latency: float | None, at: float = 0.0) -> MeasuredProgram:
    measurement = Measurement((latency,)) if latency else Measurement((), "run", "crash")
    return MeasuredProgram(task, "", "tune", "", measurement, 0.5, at)


def test_the_curve_counts_untuned_programs_until_something_is_faster() -> None:
    trials = [trial("a", 4.0, 1.0), trial("b", None, 2.0), trial("b", 9.0, 3.0), trial("a", 5.0, 4.0), trial("b", 1.0)]
    points = curve(trials, {"a": 2, "b": 1}, {"a": 10.0, "b": 6.0})
    assert [p.latency for p in points] == [14.0, 14.0, 14.0, 14.0, 9.0]
    assert [p.measured for p in points] == [1, 1, 2, 2, 2]
    assert [p.trial for p in points] == [1, 2, 3, 4, 5]


def test_without_untuned_programs_the_curve_begins_when_every_task_has_one() -> None:
    points = curve([trial("a", 4.0), trial("b", 1.0)], {"a": 2, "b": 1}, {})
    assert [(p.trial, p.latency) for p in points] == [(2, 9.0)]
