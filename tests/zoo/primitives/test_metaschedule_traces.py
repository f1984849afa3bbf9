"""MetaSchedule traces in their JSON form, read without TVM."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
from tchub.zoo.primitives import NONE, Primitive, TraceFormatError, from_trace_json
from tchub.zoo.primitives.language import INLINE, ROOT
from trace_samples import matmul_trace, thread_trace


def lines(trace: Any) -> list[str]:
    return str(from_trace_json(trace)).splitlines()


def test_a_cpu_program_is_told_step_by_step() -> None:
    assert lines(matmul_trace()) == [
        "Annotate(0, -1, meta_schedule.tiling_structure, SSRSRS, @matmul)",
        "Split(0, 0, 128, 2, 2, 4, 8)",
        "Split(0, 4, 128, 4, 2, 1, 16)",
        "Split(0, 8, 128, 32, 4)",
        "Reorder(0, 0, 4, 1, 5, 8, 2, 6, 9, 3, 7)",
        "CacheWrite(0, 0, global)",
        "ReverseComputeAt(1, 3, 0)",
        "ComputeAt(2, 3, -1, @relu)",
        "Parallel(-1, -1, 16)",
        "Vectorize(-1, -1, 64)",
        "Unroll(-1, -1, 64, explicit)",
    ]


def test_a_gpu_program_of_an_older_tvm_is_told_too() -> None:
    assert lines(thread_trace()) == [
        "Fuse(0, 0, 1, @copy)",
        "Split(0, 0, 0, -1, 64)",
        "Bind(0, 0, 0, blockIdx.x)",
        "Bind(0, 1, 64, threadIdx.x)",
        "CacheRead(0, 0, 0, shared)",
        "ComputeAt(1, 1, 0)",
        "Annotate(1, -1, 4, meta_schedule.cooperative_fetch)",
    ]


def test_old_and_new_names_give_equal_sequences() -> None:
    old = matmul_trace()
    for inst in old[0]:
        inst[0] = {"GetSBlock": "GetBlock"}.get(inst[0], inst[0])
        if inst[0] == "Split":
            inst[2] = [1]
    assert from_trace_json(old) == from_trace_json(matmul_trace())


def test_what_postprocessors_added_is_ignored() -> None:
    trace = matmul_trace()
    insts = [*trace[0], ["EnterPostproc", [], [], []], ["Unroll", ["l13"], [], []], ["Anything", [], [], []]]
    assert from_trace_json([insts, [*trace[1], [21, 7]]]) == from_trace_json(trace)


@pytest.mark.parametrize("answer", [ROOT, INLINE, 0, 5])
def test_a_sampled_location_stands_in_the_compute_at(answer: int) -> None:
    sequence = from_trace_json(matmul_trace(location=answer))
    assert Primitive("ComputeAt", (2, answer, NONE), ("@relu",)) in sequence.primitives


@pytest.mark.parametrize("rows", [(1, 2), (0, 1, 2, 3), (1, 2, 3, "x"), 3, None])
def test_a_decision_of_the_wrong_form_is_refused(rows: Any) -> None:
    trace = matmul_trace()
    trace[1][0][1] = list(rows) if isinstance(rows, tuple) else rows
    with pytest.raises(TraceFormatError, match="decision"):
        from_trace_json(trace)


def test_a_missing_decision_names_its_instruction() -> None:
    insts, decisions = matmul_trace()
    with pytest.raises(TraceFormatError, match="has no decision") as caught:
        from_trace_json([insts, decisions[1:]])
    assert caught.value.fields["index"] == 5
    assert caught.value.remedy


def broken(change: Any, at: int = 6) -> list:
    trace = copy.deepcopy(matmul_trace())
    trace[0][at] = change(trace[0][at])
    return trace


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (broken(lambda i: i[:2]), r"\[name, inputs, attributes, outputs\] \(instruction 6\)"),
        (broken(lambda i: ["Split", [], [], []]), "does not have the operands"),
        (broken(lambda i: [i[0], ["l99", *i[1][1:]], i[2], i[3]]), "'l99' is no loop"),
        (broken(lambda i: [i[0], ["l3", "v99"], i[2], i[3]]), "'v99' is no sampled value"),
        (broken(lambda i: [i[0], ["l3", '"x"'], i[2], i[3]]), "an integer or a sampled value"),
        (broken(lambda i: ["ComputeInline", ["b99"], [], []]), "'b99' is no block"),
        (broken(lambda i: ["Vectorize", ["l3"], [], []], at=8), "used after it was split"),
        ("{", "not a trace of the form"),
        ([{}, []], "not a trace of the form"),
        ([[], [[1]]], r"a decision is \[instruction index, answer\]"),
    ],
)
def test_malformed_traces_are_refused(trace: Any, message: str) -> None:
    with pytest.raises(TraceFormatError, match=message):
        from_trace_json(trace)


def test_an_unknown_instruction_is_refused_by_name() -> None:
    with pytest.raises(TraceFormatError, match=r"'Sprlit' .*\(instruction 6\)") as caught:
        from_trace_json(broken(lambda i: ["Sprlit", *i[1:]]))
    assert "Sprlit" in caught.value.as_dict()["instruction"]


def test_reading_json_needs_no_tvm() -> None:
    code = (
        "import sys; from tchub.zoo.primitives import from_trace_json as read; read('[[], []]');"
        "assert not {'tvm', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
