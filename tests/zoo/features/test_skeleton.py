"""Skeletons of design spaces: a batch of decisions gives the very matrices that the filled sequences give."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.zoo.devices import Device, list_devices
from tchub.zoo.errors import TchubError
from tchub.zoo.features import SCHEMAS, DeviceKindError, get_schema
from tchub.zoo.features.skeleton import Skeleton
from tchub.zoo.primitives import TraceFormatError
from tchub.zoo.primitives.metaschedule import Template
from trace_samples import CHOICES, matmul_trace, thread_trace

NAMES = [name for name, schema in SCHEMAS.items() if schema.source != "statements"]
MATMUL, THREADS = Template(matmul_trace()[0]), Template(thread_trace()[0])


def tiles(parts: int) -> st.SearchStrategy[Any]:
    return st.tuples(*[st.integers(1, 70)] * parts)


of_matmul = st.tuples(tiles(4), tiles(4), tiles(2), st.integers(-2, 9), st.integers(0, len(CHOICES) - 1))
of_threads = st.tuples(st.integers(0, 2), st.integers(0, 3))
batches = st.one_of(
    st.tuples(st.just(MATMUL), st.lists(of_matmul, max_size=6)),
    st.tuples(st.just(THREADS), st.lists(of_threads, max_size=6)),
)


def long_trace() -> list[Any]:
    """More primitives than a matrix has rows; one sampled limit (-1: unrolled whole) decides what is cropped."""
    insts, decisions = matmul_trace()
    steps = [["SampleCategorical", [], [[-1, 4], [0.5, 0.5]], ["v50"]]]
    steps += [["Annotate", ["b0", "v50"], ["pragma_auto_unroll_max_step"], []]]
    return [insts + [["Parallel", ["l13"], [], []]] * 40 + steps, [*decisions, [len(insts) + 40, 0]]]


def same(template: Template, name: str, decisions: Any, chip: Device | None = None) -> bool:
    schema = get_schema(name)
    found = Skeleton(template, schema, chip).features(decisions)
    expected = schema.extract([template.fill(d) for d in decisions], chip)
    return found.dtype == expected.dtype and found.tobytes() == expected.tobytes() and found.shape == expected.shape


@given(st.sampled_from(NAMES), batches, st.booleans())
def test_the_matrices_are_those_of_the_filled_sequences(name: str, batch: Any, with_device: bool) -> None:
    assert same(*[batch[0], name, batch[1]], chip=list_devices(get_schema(name).kind)[0] if with_device else None)


@settings(max_examples=20)
@given(
    st.lists(st.tuples(of_matmul, st.integers(0, 1)), min_size=1, max_size=4), st.sampled_from(["tcl-cpu", "tlp-gpu"])
)
def test_a_decision_may_choose_which_primitives_are_cropped(batch: Any, name: str) -> None:
    template = Template(long_trace()[0])
    assert len(template.drafts) > get_schema(name).primitives
    assert same(template, name, [(*decisions, limit) for decisions, limit in batch])


def test_a_template_without_decisions_has_one_matrix() -> None:
    plain = Template(matmul_trace()[0][:5])
    assert same(plain, "tcl-cpu", [(), ()])
    assert same(plain, "nest-cpu", [(), ()])


def test_a_decision_that_moves_loops_is_filled_in_program_by_program() -> None:
    steps = [["SampleCategorical", [], [[0, 1], [0.5, 0.5]], ["v50"]], ["StorageAlign", ["b0", "v50", 0, 1, 2], [], []]]
    template = Template([*matmul_trace()[0][:1], *steps])
    assert same(template, "nest-gpu", [(0,), (1,)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "decisions", [(3, 9), (-1, 0), ((1, 2), 0), ("1", 0)], ids=["outside", "negative", "tile", "text"]
)
def test_a_wrong_decision_is_refused_as_it_is_by_the_template(name: str, decisions: Any) -> None:
    for wrong in (decisions, decisions[::-1]):
        with pytest.raises(TraceFormatError):
            THREADS.fill(wrong)
        with pytest.raises(TraceFormatError):
            Skeleton(THREADS, get_schema(name), None).features([(0, 0), wrong])


def test_statements_and_foreign_devices_are_refused_at_once() -> None:
    with pytest.raises(TchubError):
        Skeleton(MATMUL, get_schema("statements-cpu"), None)
    with pytest.raises(DeviceKindError):
        Skeleton(MATMUL, get_schema("nest-cpu"), list_devices("gpu")[0])
