"""The words of the schedule-primitive language."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.features import get_schema
from tchub.zoo.primitives import (
    Primitive,
    PrimitiveSequence,
    TraceFormatError,
    from_ansor_steps,
    from_autotvm,
    from_trace_json,
)
from tchub.zoo.primitives.language import KINDS

primitives = st.builds(
    Primitive,
    st.sampled_from(KINDS),
    st.lists(st.integers(-2, 10**6), max_size=12).map(tuple),
    st.lists(st.text(max_size=8), max_size=3).map(tuple),
)
sequences = st.builds(PrimitiveSequence, st.lists(primitives, max_size=6).map(tuple))


@given(sequences)
def test_json_gives_the_same_sequence_back(sequence: PrimitiveSequence) -> None:
    assert PrimitiveSequence.from_json(sequence.to_json()) == sequence


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"framework": "x", "primitives": [["Split"]]}',
     '{"framework": "x", "primitives": [["Splat", [], []]]}'],
)  # fmt: skip
def test_text_that_is_no_sequence_is_refused(text: str) -> None:
    with pytest.raises(TraceFormatError, match="not a primitive sequence"):
        PrimitiveSequence.from_json(text)


def _trace_with(number: int) -> PrimitiveSequence:
    block = ["GetSBlock", [], ["C", "main"], ["b0"]]
    limit = ["Annotate", ["b0", number], ["meta_schedule.unroll_explicit"], []]
    return from_trace_json(json.dumps([[block, limit], []]))


@pytest.mark.parametrize(
    "read",
    [
        lambda number: from_ansor_steps([["PR", 0, 0, f"auto_unroll_max_step${number}"]]),
        lambda number: from_autotvm("some.cuda", [], [["auto_unroll_max_step", "ot", number]]),
        lambda number: from_autotvm("some.cuda", [], [["tile_x", "sp", [2, number]]]),
        _trace_with,
        lambda number: PrimitiveSequence.from_json(PrimitiveSequence((Primitive("Unroll", (0, 0, number)),)).to_json()),
    ],
)  # fmt: skip
def test_numbers_that_features_cannot_hold_are_refused_by_every_reader(
    read: Callable[[int], PrimitiveSequence],
) -> None:
    with pytest.raises(TraceFormatError, match="too large") as caught:
        read(10**30)
    assert caught.value.remedy
    for schema in ("nest-gpu", "tcl-gpu"):
        get_schema(schema).extract([read(2**60)])
