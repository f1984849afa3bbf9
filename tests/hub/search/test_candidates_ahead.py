"""Working ahead changes when results are made, never which ones arrive."""

from __future__ import annotations

import threading
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.search.candidates import map_ahead


@given(st.lists(st.integers()), st.integers(0, 5))
def test_the_same_results_in_the_same_order(items: list[int], ahead: int) -> None:
    assert list(map_ahead(lambda item: item + 1, items, ahead)) == [(item, item + 1) for item in items]


@pytest.mark.parametrize("ahead", [0, 4])
def test_an_exception_arrives_in_its_items_place(ahead: int) -> None:
    stream = map_ahead(lambda item: 1 // item, [1, 0], ahead)
    assert next(stream) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        next(stream)


def test_closing_early_ends_the_threads() -> None:
    stream = map_ahead(str, count(), 2)
    next(stream)
    stream.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("tchub-ahead")]
