"""A run says once when other processes take the cores that it may use; its own work is no disturbance."""

from __future__ import annotations

import pytest
from tchub.hub.device import quietness
from tchub.hub.device.quietness import Neighbours, _Spent


def told(monkeypatch: pytest.MonkeyPatch, *seen: _Spent, cpus: int = 2) -> list[str]:
    """What is said when the machine looks so, one look after the other."""
    looks = iter(seen)
    notes: list[str] = []
    monkeypatch.setattr(quietness, "_spent", lambda: next(looks))
    monkeypatch.setattr(quietness, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(quietness, "_LOOK_SECONDS", -1e18)
    neighbours = Neighbours(notes.append)
    for _ in seen[1:]:
        neighbours.look()
    return notes


def test_the_work_of_others_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [_Spent(t, 2.0 * t, {1: 0.4 * t}) for t in (0.0, 10.0, 20.0)]
    (note,) = told(monkeypatch, *seen)
    assert "other processes take 80% of its cores" in note


def test_its_own_workers_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, _Spent(0.0, 0.0, {1: 5.0}), _Spent(10.0, 20.0, {1: 14.0, 7: 9.0})) == []


def test_a_worker_that_ended_makes_the_others_no_busier(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, _Spent(0.0, 0.0, {1: 5.0, 7: 400.0}), _Spent(10.0, 18.0, {1: 14.0, 8: 8.0})) == []


def test_what_was_spent_is_read_from_this_machine() -> None:
    spent = quietness._spent()
    assert spent.busy > 0
    assert sum(spent.own.values()) > 0
