"""Live traces of candidates that TVM generates here, for a CPU and (without one) for a GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tvm
from tchub.zoo.features import get_schema
from tchub.zoo.primitives import Primitive, PrimitiveSequence, from_trace_json, read_trace
from tchub.zoo.tvm_import import import_tensor_intrinsics
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
    context = ms.TuneContext(
        mod=mod,
        target=tvm.target.Target(TARGETS[kind]),
        space_generator="post-order-apply",
        search_strategy=strategy,
        num_threads=1,
        rand_state=1,
    )
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
    assert len({s.key() for s in sequences.values()}) == len(sequences)
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
