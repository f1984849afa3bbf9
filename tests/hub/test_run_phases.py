"""Seconds by phase: what a report says after a stop is about the whole run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_tuning import FakeMeasure
from tchub.hub.records.run_folder import read_phases, write_phases
from tchub.hub.records.errors import RunStateError
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.task_search import SearchSettings
from tchub.hub.tuning.session import SessionSettings, TuningSession
from tvm.s_tir import meta_schedule as ms

SEARCH = SearchSettings(population_size=16, init_min_unmeasured=8, genetic_num_iters=1)
NAMES = ("search", "measure")


class SlowForUntuned(FakeMeasure):
    """The first program, the untuned one, takes a second; the others nearly nothing."""

    def __call__(self, jobs: Sequence[Any]) -> Iterator[Any]:
        if self.count == 0:
            time.sleep(1.0)
        yield from super().__call__(jobs)


def test_a_resumed_run_goes_on_counting_and_untuned_programs_are_outside_the_clock(
    tmp_path: Path, small_task: Any, target: Any
) -> None:
    def part(trials: int, measure: FakeMeasure) -> dict[str, float]:
        settings = SessionSettings(trials=trials, batch=4, search=SEARCH)
        model = ms.cost_model.RandomModel(seed=0)
        return TuningSession([small_task], target, model, measure, tmp_path, settings, StopFlag()).run().phases

    first = part(4, SlowForUntuned())
    assert 0 < first["measure"] < 1.0
    assert first["build"] == pytest.approx(4 * 0.01)
    assert part(4, FakeMeasure()) == first, "nothing is left to do: the report says what the first part took"
    more = part(8, FakeMeasure())
    assert more["build"] == pytest.approx(8 * 0.01)
    assert more["search"] > first["search"]


def test_what_was_never_kept_is_zero_and_what_is_damaged_is_said(tmp_path: Path) -> None:
    assert read_phases(tmp_path, NAMES) == {"search": 0.0, "measure": 0.0}
    write_phases(tmp_path, {"search": 1.5, "gone": 2.0})
    assert read_phases(tmp_path, NAMES) == {"search": 1.5, "measure": 0.0}
    for text in ("{", "[]", json.dumps({"search": "long"})):
        (tmp_path / "phases.json").write_text(text)
        with pytest.raises(RunStateError, match="damaged") as caught:
            read_phases(tmp_path, NAMES)
        assert "delete it" in str(caught.value.remedy)
