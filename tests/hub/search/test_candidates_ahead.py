"""Working ahead changes when results are made, never which ones arrive."""

from __future__ import annotations

import threading
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.search import candidates
from tchub.hub.search.candidates import map_ahead


@given(st.lists(st.integers()), st.integers(0, 5))
def test_the_same_results_in_the_same_order(items: list[int], ahead: int) -> None:
    assert list(map_ahead(lambda item: item + 1, items, lambda: ahead)) == [(item, item + 1) for item in items]


@pytest.mark.parametrize("ahead", [0, 4])
def test_an_exception_arrives_in_its_items_place(ahead: int) -> None:
    stream = map_ahead(lambda item: 1 // item, [1, 0], lambda: ahead)
    assert next(stream) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        next(stream)


def test_no_more_is_made_than_is_still_wanted() -> None:
    asked: list[int] = []
    wanted = [3]
    for _ in map_ahead(asked.append, count(), lambda: wanted[0]):
        wanted[0] -= 1
        if wanted[0] == 0:
            break
    assert sorted(asked) == [0, 1, 2]


def test_results_are_made_side_by_side_and_before_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "usable_cpus", lambda: 2)
    both = threading.Barrier(2, timeout=30)
    assert sum(1 for _ in map_ahead(lambda _: both.wait(), range(4), lambda: 2)) == 4


def test_closing_early_ends_the_threads() -> None:
    stream = map_ahead(str, count(), lambda: 2)
    next(stream)
    stream.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("tchub-ahead")]
