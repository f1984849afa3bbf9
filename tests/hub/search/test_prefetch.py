"""Prefetching changes when items are made, never which ones arrive."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.search.candidates import prefetch


@given(st.lists(st.integers()), st.integers(1, 5))
def test_the_same_items_in_the_same_order(items: list[int], size: int) -> None:
    assert list(prefetch(items, size)) == items


def test_an_exception_arrives_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    stream = prefetch(items(), 4)
    assert next(stream) == 1
    with pytest.raises(ValueError, match="broken"):
        next(stream)


def test_closing_early_ends_the_thread() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 0

    stream = prefetch(endless(), 2)
    next(stream)
    stream.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("tchub-prefetch")]
