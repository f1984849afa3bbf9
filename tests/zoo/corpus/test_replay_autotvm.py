"""AutoTVM's templates as schedules: their threads and tiles, and the numbers that numpy computes."""

import json
from typing import Any

import numpy as np
import pytest
import tvm
from tchub.zoo.corpus.replay.autotvm import replay_knobs
from tchub.zoo.corpus.replay.operators import ReplayError
from tchub.zoo.corpus.replay.statements import LoweringJob, features_of


def key(template: str, *args: Any) -> str:
    return json.dumps([template, list(args)])


def tensor(*shape: int) -> list[Any]:
    return ["TENSOR", list(shape), "float32"]


def splits(**knobs: list[int]) -> list[list[Any]]:
    return [[name, "sp", [-1, *factors]] for name, factors in knobs.items()]


UNROLL = [["auto_unroll_max_step", "ot", 16], ["unroll_explicit", "ot", 0]]
DENSE = (tensor(8, 32), tensor(24, 32), None, "float32")
BATCH = (tensor(3, 8, 32), tensor(3, 24, 32), [3, 8, 24])
CONV = (tensor(1, 8, 10, 10), tensor(16, 8, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], "float32")
DEPTHWISE = (tensor(1, 16, 10, 10), tensor(16, 1, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], "float32")

X86 = [
    (key("dense_nopack.x86", *DENSE), splits(tile_y=[4], tile_x=[6], tile_k=[8])),
    (key("dense_nopack.x86", *DENSE), splits(tile_y=[1], tile_x=[1], tile_k=[1])),
    (key("dense_pack.x86", *DENSE), splits(tile_y=[2, 2], tile_x=[3, 4], tile_k=[4])),
    (key("dense_pack.x86", *DENSE), splits(tile_y=[1, 8], tile_x=[1, 8], tile_k=[2], tile_inner=[4])),
    (key("batch_matmul.x86", *BATCH), splits(tile_y=[4], tile_x=[3], tile_k=[8])),
]
GPU = [
    (key("dense_small_batch.cuda", *DENSE), splits(tile_k=[8]), {8}),
    (key("dense_large_batch.cuda", *DENSE), splits(tile_x=[2, 2, 1], tile_y=[1, 2, 3], tile_k=[4, 2]), {2}),
    (key("batch_matmul.cuda", *BATCH), splits(tile_y=[2, 2], tile_x=[4, 3], tile_k=[8]) + UNROLL, {2, 4}),
    (
        key("conv2d_nchw.cuda", *CONV),
        splits(tile_f=[2, 4, 2], tile_y=[1, 5, 1], tile_x=[1, 2, 5], tile_rc=[4], tile_ry=[1], tile_rx=[3]) + UNROLL,
        {4, 5, 2},
    ),
    (
        key("depthwise_conv2d_nchw.cuda", *DEPTHWISE),
        splits(tile_f=[1, 4, 2], tile_y=[1, 5, 1], tile_x=[1, 2, 5]) + UNROLL,
        {4, 5, 2},
    ),
]


@pytest.mark.parametrize(("task", "knobs"), X86)
def test_a_cpu_template_computes_what_numpy_computes(task: str, knobs: list[Any]) -> None:
    mod = replay_knobs(task, knobs).mod
    rng = np.random.default_rng(0)
    a, b = (rng.random(shape, np.float32) for _, shape, _ in json.loads(task)[1][:2])
    expected = a @ np.swapaxes(b, -1, -2)
    tensors = [tvm.runtime.tensor(x) for x in (a, b, np.zeros_like(expected))]
    tvm.compile(mod, target=tvm.target.Target("llvm"))["main"](*tensors)
    np.testing.assert_allclose(tensors[2].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(("task", "knobs", "threads"), GPU, ids=[json.loads(g[0])[0] for g in GPU])
def test_a_gpu_template_has_its_threads_in_every_stage_and_lowers(
    task: str, knobs: list[Any], threads: set[int]
) -> None:
    schedule = replay_knobs(task, knobs)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    loops = [schedule.get(rv) for block in blocks for rv in schedule.get_loops(block)]
    axes: dict[str, set[int]] = {}
    for loop in loops:
        if loop.thread_binding is not None:
            axes.setdefault(str(loop.thread_binding.thread_tag), set()).add(int(loop.extent))
    # One extent an axis, whichever stage binds it: a kernel has no other way.
    assert all(len(extents) == 1 for extents in axes.values())
    assert {e for axis, (e,) in axes.items() if axis.startswith("threadIdx")} == threads
    (found,) = features_of([LoweringJob("autotvm", task, json.dumps(knobs), gpu=True)])
    assert len(found) >= 2


@pytest.mark.parametrize(
    ("task", "knobs", "reason"),
    [
        (key("dense_cublas.cuda", *DENSE), [], "unknown-workload"),
        (key("dense_small_batch.cuda", *DENSE), splits(tile_k=[7]), "wrong-shape"),
        ("dense_small_batch.cuda", [], "unknown-workload"),
        ('["dense_small_batch.cuda", 3]', [], "unknown-workload"),
    ],
    ids=["template", "factors", "no JSON", "no arguments"],
)
def test_what_cannot_be_replayed_says_why(task: str, knobs: list[Any], reason: str) -> None:
    with pytest.raises(ReplayError) as caught:
        replay_knobs(task, knobs)
    assert caught.value.reason == reason


def test_a_workload_or_trace_that_is_no_json_costs_one_program_not_its_batch() -> None:
    task, knobs = X86[0]
    good = LoweringJob("autotvm", task, json.dumps(knobs), gpu=False)
    features = features_of([good._replace(workload="{"), good, good._replace(trace="[")])
    assert [getattr(one, "reason", None) for one in features] == ["unknown-workload", None, "wrong-shape"]
