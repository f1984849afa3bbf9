"""The time left of `tchub tune`, on recorded runs and on simulated ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tchub.hub.cli.progress import Eta, left_text

# When each stage, phase and (every second) program came, on two cores beside other work: [seconds, stage or end],
# or [seconds, programs measured, phase, tasks that had their first round].
RECORDED = json.loads(Path(__file__).with_name("recorded_runs.json").read_text())


def view(done: int, phase: str, visited: int, run: dict[str, Any]) -> Any:
    progress = [SimpleNamespace(rounds=int(i < visited), exhausted=False) for i in range(run["tasks"])]
    return SimpleNamespace(done=done, trials=run["trials"], phase=phase, batch=run["batch"], progress=progress)


def replay(run: dict[str, Any], sessions: int = 1) -> Iterator[tuple[float, Any, float | None]]:
    """Give each moment of a run, what happened then, and how much time was said to be left."""
    now = [0.0]
    eta = Eta(sessions, clock=lambda: now[0])
    for number, (seconds, *event) in enumerate(run["events"]):
        now[0] = seconds
        if event[0] == "stage":
            eta.stage()
        elif event[0] != "end":
            done, phase, visited, *label = event
            eta.session(*(label or ["tuned"]), view(done, phase, visited, run))
        yield seconds, event, eta.left()
        if number + 1 < len(run["events"]):  # the screen asks while nothing happens, too
            now[0] = (seconds + run["events"][number + 1][0]) / 2
            yield now[0], event, eta.left()


def wrong(told: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of pairs of the time said and the true one in seconds: those a factor of two apart, and more than 10 s."""
    return [(said, true) for said, true in told if not true / 2 <= said <= 2 * true and abs(said - true) > 10]


@pytest.mark.parametrize("name", RECORDED)
def test_the_time_left_of_recorded_runs_is_right_within_a_factor_of_two(name: str) -> None:
    run = RECORDED[name]
    end = run["events"][-1][0]
    moments = list(replay(run))
    assert not wrong([(left, end - now) for now, _, left in moments if left is not None])
    first = next(event for _, event, left in moments if left is not None)
    assert first[0] <= 9, "it is told once the first round is measured"


def simulated(trial_seconds: float, *, busy: float = 1.0, sessions: tuple[str, ...] = ("tuned",)) -> dict[str, Any]:
    """A run of 10 tasks with rounds of 4, whose machine is slower by `busy` from the middle on."""
    events: list[list[Any]] = [[0.0, "stage"]]
    now = 20.0
    for label in sessions:
        events += [[now, "stage"], [now + 1, 0, "search", 0, label], [now + 2, 0, "measure", 0, label]]
        now += 10  # the untuned programs
        done = visited = 0
        while done < 80:
            slower = busy if done >= 40 else 1.0
            count = 1 if visited < 10 else min(4, 80 - done)
            events.append([now, done, "search", visited, label])
            now += slower * trial_seconds
            events.append([now, done, "measure", visited, label])
            for _ in range(count):
                now += slower * trial_seconds
                done += 1
                events.append([now, done, "measure", visited, label])
            visited = min(10, visited + 1)
    events += [[now, "stage"], [now + 4, "stage"], [now + 12, "end"]]
    return {"trials": 80, "tasks": 10, "batch": 4, "events": events}


@pytest.mark.parametrize("trial_seconds", [0.05, 1.0, 30.0])
@pytest.mark.parametrize("sessions", [("tuned",), ("tuned", "stock")])
def test_the_time_left_of_even_runs_is_right_at_any_pace(trial_seconds: float, sessions: tuple[str, ...]) -> None:
    run = simulated(trial_seconds, sessions=sessions)
    end = run["events"][-1][0]
    told = [(left, end - now) for now, _, left in replay(run, len(sessions)) if left is not None]
    assert len(told) > 100
    assert not wrong(told)


def test_a_machine_that_becomes_busy_is_followed() -> None:
    run = simulated(1.0, busy=3.0)
    end = run["events"][-1][0]
    late = [(left, end - now) for now, event, left in replay(run) if left is not None and event[0] == 72]
    assert late
    assert not wrong(late)


def test_a_run_that_is_taken_up_at_its_end_has_the_end_left_alone() -> None:
    now = [0.0]
    eta = Eta(clock=lambda: now[0])
    now[0] = 20.0
    eta.session("tuned", view(80, "model", 10, {"tasks": 10, "trials": 80, "batch": 4}))
    left = eta.left()
    assert left is not None
    assert 5 < left < 40


def test_before_the_first_programs_nothing_is_said() -> None:
    assert [left for _, event, left in replay(simulated(1.0)) if event == ["stage"] or event[0] == 0][:4] == [None] * 4


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "time left unknown"), (1.0, "about 5 s left"), (63.0, "about 65 s left"), (100.0, "about 2 min left")],
)
def test_the_time_left_is_said_no_more_exactly_than_it_is_known(seconds: float | None, text: str) -> None:
    assert left_text(seconds) == text
