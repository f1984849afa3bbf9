"""Measuring the programs of a search while it goes on."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tchub.hub.device.measure import Measurement
from tchub.hub.search import measuring
from tchub.hub.search.measuring import WorkerMeasure


@pytest.mark.parametrize(("preempts", "order"), [(True, "smsm"), (False, "ssmm")])
def test_nothing_is_searched_while_a_program_that_shares_its_core_is_timed(
    preempts: bool, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def measure(candidates: Iterator[Any]) -> Iterator[Any]:
        for candidate in candidates:
            events.append("m")
            yield candidate, Measurement((1e-3,))

    def jobs() -> Iterator[Any]:
        for number in range(2):
            events.append("s")
            yield SimpleNamespace(task_id="a", mod=None), number

    monkeypatch.setattr(measuring, "from_measure_candidate", lambda *candidate: list(candidate))
    measured = WorkerMeasure(SimpleNamespace(measure=measure, preempts=preempts))(jobs())
    assert [index for index, _ in measured] == [0, 1], "equal candidates are told apart"
    assert "".join(events) == order
