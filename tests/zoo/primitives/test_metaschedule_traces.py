"""MetaSchedule's traces: live ones that TVM makes here for a CPU and a GPU, and JSON, which is read without TVM."""

import json
import subprocess
import sys
from typing import Any

import pytest
import tvm
from tchub.zoo.features import get_schema
from tchub.zoo.primitives import NONE, Primitive, PrimitiveSequence, TraceFormatError, from_trace_json, read_trace
from tchub.zoo.primitives.language import INLINE, ROOT
from tchub.zoo.tvm_import import import_tensor_intrinsics
from trace_samples import matmul_trace, thread_trace
from tvm import te
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule.instruction import InstructionKind

TARGETS = {"cpu": {"kind": "llvm", "num-cores": 4}, "gpu": "nvidia/nvidia-t4"}


def sequence_of(trace: Any) -> PrimitiveSequence:
    template, decisions = read_trace(trace)
    return template.fill(decisions)


def matmul() -> tvm.IRModule:
    a, b = te.placeholder((64, 128), name="A"), te.placeholder((128, 64), name="B")
    k = te.reduce_axis((0, 128), name="k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    d = te.compute((64, 64), lambda i, j: te.max(c[i, j], 0.0), name="relu")
    return tvm.IRModule({"main": te.create_prim_func([a, b, d])})


def softmax() -> tvm.IRModule:
    a = te.placeholder((16, 256), name="A")
    j, k = te.reduce_axis((0, 256), name="j"), te.reduce_axis((0, 256), name="k")
    top = te.compute((16,), lambda i: te.max(a[i, j], axis=j), name="top")
    total = te.compute((16,), lambda i: te.sum(te.exp(a[i, k] - top[i]), axis=k), name="total")
    out = te.compute((16, 256), lambda i, c: te.exp(a[i, c] - top[i]) / total[i], name="softmax")
    return tvm.IRModule({"main": te.create_prim_func([a, out])})


def candidates(mod: tvm.IRModule, kind: str, strategy: Any) -> list[Any]:
    import_tensor_intrinsics()
    target, ways = tvm.target.Target(TARGETS[kind]), {"num_threads": 1, "rand_state": 1}
    context = ms.TuneContext(mod, target=target, space_generator="post-order-apply", search_strategy=strategy, **ways)
    spaces = context.generate_design_space()
    context.pre_tuning(24, 24, spaces, ms.database.MemoryDatabase(), ms.cost_model.RandomModel())
    return [candidate.sch.trace for candidate in context.generate_measure_candidates()]


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=[matmul, softmax], ids=lambda workload: workload.__name__)
def traces(request: pytest.FixtureRequest, kind: str) -> list[Any]:
    """Random candidates, and candidates that the evolutionary search mutated."""
    evolutionary = ms.search_strategy.EvolutionarySearch(
        population_size=24, init_measured_ratio=0.0, init_min_unmeasured=8, genetic_num_iters=2
    )
    return [t for s in ("replay-trace", evolutionary) for t in candidates(request.param(), kind, s)]


def test_live_and_json_readers_agree_on_every_candidate(traces: list[Any]) -> None:
    assert len(traces) > 24
    for trace in traces:
        live = sequence_of(trace)
        as_json = trace.as_json()
        assert live == from_trace_json(as_json)
        assert live == from_trace_json(json.dumps(as_json, default=lambda constant: constant.value))
        assert live == sequence_of(trace)


def test_candidates_that_differ_keep_sequences_and_matrices_of_their_own(traces: list[Any], kind: str) -> None:
    sequences = {str(trace.as_json(remove_postproc=True)): sequence_of(trace) for trace in traces}
    matrices = get_schema(f"tcl-{kind}").extract(list(sequences.values()))
    assert len(sequences) > 1
    assert len({s.primitives for s in sequences.values()}) == len(sequences)
    assert len({m.tobytes() for m in matrices}) == len(sequences)


def test_rare_instructions_are_read_the_same_both_ways() -> None:
    sch = tvm.s_tir.Schedule(matmul())
    block = sch.get_sblock("matmul")
    sch.transform_layout(block, ("write", 0), lambda i, j: (j, i))
    sch.set_scope(block, 0, "global")
    sch.storage_align(block, 0, 0, 8, 1)
    sch.annotate(block, "stages", [0, 1])
    sch.decompose_reduction(block, sch.get_loops(block)[2])
    sequence = sequence_of(sch.trace)
    assert sequence == from_trace_json(sch.trace.as_json())
    kinds = [p.kind for p in sequence]
    assert kinds == ["TransformLayout", "SetScope", "StorageAlign", "Annotate", "DecomposeReduction"]
    assert sequence.primitives[0].names[0] == "i0,i1->i1,i0", "TVM's release and names are no part of it"
    assert sequence.primitives[2] == Primitive("StorageAlign", (0, 0, 0, 8, 1))
    assert sequence.primitives[3] == Primitive("Annotate", (0, -1, 2, 0, 1), ("stages",))


def test_a_map_that_names_its_parts_again_and_again_is_not_written_out() -> None:
    nodes: list[Any] = [{"type": "ffi.String", "data": "i"}, {"type": "ir.Var", "data": {"name": 0}}]
    nodes += [{"type": "prim.Add", "data": {"a": i + 1, "b": i + 1}} for i in range(60)]
    nodes += [{"type": "ffi.Array", "data": [1]}, {"type": "ffi.Array", "data": [61]}]
    nodes += [{"type": "tirx.IndexMap", "data": {"initial_indices": 62, "final_indices": 63}}]
    graph = json.dumps({"root_index": 64, "nodes": nodes})
    block = ["GetSBlock", [], ["matmul", "main"], ["b0"]]
    transform = ["TransformLayout", ["b0", graph], [0, 1, None, 1], []]
    (primitive,) = from_trace_json([[block, transform], []])
    assert graph in primitive.names


def test_the_vocabulary_holds_only_instructions_that_tvm_has() -> None:
    from tchub.zoo.primitives.instructions import GETTERS, HANDLERS, SAMPLERS

    for name in (*GETTERS, *SAMPLERS, *HANDLERS):
        assert InstructionKind.get(name).name == name


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


def test_what_postprocessors_added_is_ignored() -> None:
    trace = matmul_trace()
    insts = [*trace[0], ["EnterPostproc", [], [], []], ["Unroll", ["l13"], [], []], ["Anything", [], [], []]]
    assert from_trace_json([insts, [*trace[1], [21, 7]]]) == from_trace_json(trace)


@pytest.mark.parametrize("answer", [ROOT, INLINE, 0, 5])
def test_a_sampled_location_stands_in_the_compute_at(answer: int) -> None:
    sequence = from_trace_json(matmul_trace(location=answer))
    assert Primitive("ComputeAt", (2, answer, NONE), ("@relu",)) in sequence.primitives


def broken(change: Any, at: int = 6) -> list:
    trace = matmul_trace()
    trace[0][at] = change(trace[0][at])
    return trace


def decided(tile: Any) -> list:
    """The trace with another decision of the first tile."""
    insts, decisions = matmul_trace()
    return [insts, [[5, tile], *decisions[1:]]]


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
        (broken(lambda i: ["Sprlit", *i[1:]]), r"'Sprlit' .*\(instruction 6\)"),
        ([matmul_trace()[0], matmul_trace()[1][1:]], r"has no decision \(instruction 5\)"),
        *((decided(tile), "decision") for tile in ([1, 2], [0, 1, 2, 3], [1, 2, 3, "x"], 3, None)),
    ],
)
def test_malformed_traces_are_refused(trace: Any, message: str) -> None:
    with pytest.raises(TraceFormatError, match=message) as caught:
        from_trace_json(trace)
    assert caught.value.remedy


def test_reading_json_needs_no_tvm() -> None:
    code = (
        "import sys; from tchub.zoo.primitives import from_trace_json as read; read('[[], []]');"
        "assert not {'tvm', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
