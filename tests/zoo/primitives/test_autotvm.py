"""AutoTVM's knobs told in the common language."""

from typing import Any

import pytest
from autotvm_samples import GPU_CONV, SAMPLES
from tchub.zoo.primitives import Primitive, TraceFormatError, from_autotvm


def primitives_of(template: str, **changed: Any) -> list[Primitive]:
    """The sample of a template, with some knobs' values changed (None takes a knob away)."""
    args, entity = SAMPLES[template]
    entity = [[name, kind, changed.get(name, value)] for name, kind, value in entity]
    return list(from_autotvm(template, args, [knob for knob in entity if knob[2] is not None]))


def test_reorder_and_annotation_knobs_name_the_loops_they_mean() -> None:
    """Loops n co oh ow ci kh kw vc vh vw: kw is unrolled, vh too, vc is a vector."""
    product = [p for p in primitives_of("conv2d_nchw_spatial_pack.arm_cpu") if p.numbers[0] == 1]
    assert [str(p) for p in product if p.kind == "Reorder"] == ["Reorder(1, 0, 1, 3, 5, 7, 8, 9, 2, 4, 6)"]
    assert [str(p) for p in product if p.kind in ("Unroll", "Vectorize")] == [
        "Unroll(1, 6, -1)",
        "Unroll(1, 8, -1)",
        "Vectorize(1, 7, -1)",
    ]


def test_padding_decides_the_output_that_tiles_must_divide() -> None:
    valid = [*GPU_CONV[:3], "VALID", *GPU_CONV[4:]]
    with pytest.raises(TraceFormatError, match="tile_y"):  # 6 x 6 outputs, tiles of 7
        from_autotvm("conv2d_nchw.cuda", valid, SAMPLES["conv2d_nchw.cuda"][1])
    same = [*GPU_CONV[:3], "SAME", *GPU_CONV[4:]]
    assert list(from_autotvm("conv2d_nchw.cuda", same, SAMPLES["conv2d_nchw.cuda"][1])) == primitives_of(
        "conv2d_nchw.cuda"
    )


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("tile_f", [-1, 3, 4, 2]),  # does not divide 32
        ("tile_f", [2, -1, 4, 2]),  # the rest is not outermost
        ("tile_f", "wide"),
        ("unroll_explicit", None),  # the knob is missing
        ("auto_unroll_max_step", "many"),
    ],
)
def test_damaged_knobs_are_named(knob: str, value: Any) -> None:
    with pytest.raises(TraceFormatError) as error:
        primitives_of("conv2d_nchw.cuda", **{knob: value})
    assert knob in str(error.value)
    assert error.value.remedy


def test_an_unknown_template_is_told_knob_by_knob() -> None:
    entity = [
        *(["tile_a", "sp", [-1, 4]], ["tile_b", "sp", [2, 8]], ["order", "re", [1, 0]]),
        *(["ann", "an", ["none", "vec", "unroll"]], ["step", "ot", 16], ["mode", "ot", "fast"]),
    ]
    assert str(from_autotvm("some_other.cuda", [], entity)).splitlines() == [
        "Split(0, 0, 0, -1, 4)",
        "Split(0, 2, 16, 2, 8)",
        "Reorder(0, 1, 0)",
        "Vectorize(0, 1, -1)",
        "Unroll(0, 2, -1)",
        "Annotate(0, -1, 16, step)",
        "Annotate(0, -1, mode, fast)",
    ]
