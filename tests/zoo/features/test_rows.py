"""Sequences as matrices: shapes, padding, the hardware row, and that no decision is lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.devices import list_devices
from tchub.zoo.errors import TchubError
from tchub.zoo.features import SCHEMAS, DeviceKindError, get_schema
from tchub.zoo.features.rows import KNOWN_NAMES, crop
from tchub.zoo.primitives import Primitive, PrimitiveSequence, from_trace_json
from tchub.zoo.primitives.language import KINDS
from trace_samples import matmul_trace, thread_trace

SHAPES = {"tcl-cpu": (26, 22), "tcl-gpu": (41, 20), "tlp-cpu": (25, 22), "tlp-gpu": (40, 20)}

schemas = st.sampled_from([SCHEMAS[name] for name in SHAPES])
primitives = st.builds(
    Primitive,
    st.sampled_from(KINDS),
    st.lists(st.one_of(st.integers(-3, 70), st.integers(-5, 10**8)), max_size=12).map(tuple),
    st.lists(st.one_of(st.sampled_from(KNOWN_NAMES), st.text(max_size=4)), max_size=3).map(tuple),
)
sequences = st.builds(PrimitiveSequence, st.lists(primitives, max_size=8).map(tuple))


@pytest.mark.parametrize("name", SHAPES)
def test_every_schema_gives_the_declared_shape(name: str) -> None:
    schema = get_schema(name)
    programs = [from_trace_json(matmul_trace()), from_trace_json(thread_trace())]
    matrices = schema.extract(programs, list_devices(schema.kind)[0])
    assert matrices.shape == (2, schema.rows, schema.width) == (2, *SHAPES[name])
    assert matrices.dtype == np.float32
    assert np.isfinite(matrices).all()
    assert [int(m[: schema.primitives].any(axis=1).sum()) for m in matrices] == [len(p) for p in programs]


@pytest.mark.parametrize("name", ["tcl-cpu", "tcl-gpu"])
def test_the_last_row_is_the_hardware(name: str) -> None:
    schema = get_schema(name)
    chip = list_devices(schema.kind)[0]
    program = [from_trace_json(matmul_trace())]
    with_device, without = schema.extract(program, chip)[0], schema.extract(program)[0]
    assert np.array_equal(with_device[-1], chip.hardware_row())
    assert not without[-1].any()
    assert np.array_equal(with_device[:-1], without[:-1])


def test_a_device_of_the_other_kind_is_refused() -> None:
    with pytest.raises(DeviceKindError, match="tcl-cpu describes programs for a CPU") as caught:
        get_schema("tcl-cpu").extract([], list_devices("gpu")[0])
    assert "tcl-gpu" in str(caught.value.remedy)


def test_an_unknown_schema_is_refused_with_those_there_are() -> None:
    with pytest.raises(TchubError) as caught:
        get_schema("tcl-npu")
    assert caught.value.fields["known"] == list(SCHEMAS)


@given(schemas, sequences, sequences)
def test_different_sequences_have_different_matrices(schema, a, b) -> None:
    one, other = schema.extract([a, b])
    assert np.array_equal(one, other) == (a.primitives == b.primitives)


@given(schemas, st.lists(sequences, max_size=3))
def test_a_program_has_one_matrix_whatever_its_batch(schema, batch) -> None:
    together = schema.extract(batch)
    for program, matrix in zip(batch, together, strict=True):
        assert np.array_equal(schema.extract([program])[0], matrix)


def test_a_crop_keeps_the_order_and_what_the_search_decides() -> None:
    program = from_trace_json(matmul_trace()).primitives
    inlined = tuple(Primitive("ComputeInline", (i,), (f"@T_{i}",)) for i in range(20))
    kept = crop(inlined + program, len(program))
    assert kept == program
    assert [p.kind for p in crop(program, 5)] == ["Split", "Split", "Split", "ComputeAt", "Parallel"]
    assert crop(program, 40) is program
