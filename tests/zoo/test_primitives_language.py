"""The words of the schedule-primitive language."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.zoo.primitives import KINDS, Primitive, PrimitiveSequence, TraceFormatError
from tchub.zoo.primitives.instructions import TELLERS

primitives = st.builds(
    Primitive,
    st.sampled_from(KINDS),
    st.lists(st.integers(-2, 10**6), max_size=12).map(tuple),
    st.lists(st.text(max_size=8), max_size=3).map(tuple),
)
sequences = st.builds(PrimitiveSequence, st.lists(primitives, max_size=6).map(tuple))


@settings(max_examples=60, deadline=None)
@given(sequences)
def test_json_gives_the_same_sequence_back(sequence: PrimitiveSequence) -> None:
    assert PrimitiveSequence.from_json(sequence.to_json()) == sequence


@settings(max_examples=60, deadline=None)
@given(sequences, sequences)
def test_keys_are_equal_only_for_equal_primitives(a: PrimitiveSequence, b: PrimitiveSequence) -> None:
    assert (a.key() == b.key()) == (a.primitives == b.primitives)
    assert len(a.key()) == 16


def test_the_framework_is_not_part_of_the_key() -> None:
    steps = (Primitive("Split", (0, 1, 64, 4, 16)),)
    assert PrimitiveSequence(steps, "ansor").key() == PrimitiveSequence(steps).key()
    assert PrimitiveSequence(steps, "ansor") != PrimitiveSequence(steps)


def test_a_sequence_reads_like_a_tuple_of_primitives() -> None:
    steps = (Primitive("Split", (0, 1, 64, 4, 16)), Primitive("Unroll", (-1, -1, 512), ("explicit",)))
    sequence = PrimitiveSequence(steps)
    assert len(sequence) == 2
    assert tuple(sequence) == steps
    assert str(sequence) == "Split(0, 1, 64, 4, 16)\nUnroll(-1, -1, 512, explicit)"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"framework": "x", "primitives": [["Split"]]}',
     '{"framework": "x", "primitives": [["Splat", [], []]]}'],
)  # fmt: skip
def test_text_that_is_no_sequence_is_refused(text: str) -> None:
    with pytest.raises(TraceFormatError, match="not a primitive sequence"):
        PrimitiveSequence.from_json(text)


def test_every_kind_is_listed_once_and_has_a_reader() -> None:
    assert len(KINDS) == len(set(KINDS))
    assert set(KINDS) == set(TELLERS)
