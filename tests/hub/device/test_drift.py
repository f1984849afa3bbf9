"""The reference kernel: what counts as disturbed, and what is measured again; times injected."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.device.timing import DriftConfig, DriftWatch, make_reference_kernel, measure_watched

QUIET = 50e-6


def learned(config: DriftConfig | None = None) -> DriftWatch:
    """A watch that knows the usual time."""
    watch = DriftWatch(config or DriftConfig())
    for _ in range(watch.config.learn):
        assert not watch.is_disturbed(QUIET)
    return watch


def fed(times: Iterable[float]) -> Callable[[], float]:
    feed = iter(times)
    return lambda: next(feed)


def test_the_tolerance_parts_noise_from_disturbance() -> None:
    watch = learned(DriftConfig(tolerance=0.15))
    assert not watch.is_disturbed(1.1 * QUIET)
    assert watch.is_disturbed(1.2 * QUIET)


def test_a_short_disturbance_does_not_become_usual_but_a_lasting_change_does() -> None:
    watch = learned(DriftConfig(window=16))
    assert [watch.is_disturbed(1.5 * QUIET) for _ in range(4)] == [True] * 4
    for _ in range(16):
        watch.is_disturbed(1.5 * QUIET)
    assert not watch.is_disturbed(1.5 * QUIET)


@pytest.mark.parametrize(
    ("times", "reference", "retries", "outcome"),
    [
        ([9.0, 8.0, 1.0], [2 * QUIET, 2 * QUIET, QUIET], 5, (1.0, 2, False)),
        ([9.0, 8.0, 7.0], [2 * QUIET] * 3, 2, (7.0, 2, True)),
        ([1.0], [QUIET], 5, (1.0, 0, False)),
        ([1.0], [], 0, (1.0, 0, False)),
    ],
)
def test_a_disturbed_program_is_measured_again_until_the_machine_is_quiet(
    times: list[float], reference: list[float], retries: int, outcome: tuple[float, int, bool]
) -> None:
    config = DriftConfig(retries=retries)
    watch = learned(config) if retries else DriftWatch(config)
    assert measure_watched(fed(times), fed(reference), watch) == outcome


@given(st.lists(st.floats(1e-6, 1e-2), min_size=20, max_size=80), st.floats(1e-3, 1e3))
def test_the_decision_depends_on_ratios_alone(times: list[float], factor: float) -> None:
    one, other = DriftWatch(DriftConfig(tolerance=0.15001)), DriftWatch(DriftConfig(tolerance=0.15001))
    binary = 2.0 ** round(factor).bit_length()  # exact in floating point
    assert [one.is_disturbed(x) for x in times] == [other.is_disturbed(binary * x) for x in times]


def test_beside_a_program_of_several_threads_it_runs_on_all_their_cores_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: pinned.append(tuple(cpus)))
    six = tuple(range(6))
    kernel = make_reference_kernel(six)
    assert 0 < kernel() < 1
    assert 0 < kernel() < 1
    one_by_one = [(cpu,) for cpu in (0, 1, 2, 3)], [(cpu,) for cpu in (4, 5, 0, 1)]
    assert pinned == [*one_by_one[0], six, *one_by_one[1], six], "and this thread may use all of them again"
