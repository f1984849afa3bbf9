"""Old records as schedules: the same loops as the record, the same numbers as numpy."""

import json
from typing import Any

import numpy as np
import pytest
import tvm
from tchub.zoo.corpus.replay.ansor import replay
from tchub.zoo.corpus.replay.operators import ReplayError, workload
from tchub.zoo.primitives.problem import paddings

Steps = list[list[Any]]

CONV = ["conv2d_layer", 2, 4, 8, 8, 8, 3, 3, 1, "SAME"]
MATMUL = ["matmul_layer", 16, 32, 24]


def tiled(stage: int, extents: list[int], lengths: list[list[int]]) -> Steps:
    """A split of each of the stage's loops, whose new loops stand where the old one stood."""
    steps, iterator = [], 0
    for extent, inner in zip(extents, lengths, strict=True):
        steps.append(["SP", stage, iterator, extent, inner, 1])
        iterator += len(inner) + 1
    return steps


def gpu_matmul(threads: int = 4, vector: int = 2) -> Steps:
    """What Ansor makes of a matmul on a GPU: five levels of tiles, both inputs in shared memory."""
    return [
        ["CHW", 2, "local"],
        *tiled(2, [16, 24, 32], [[2, threads, 1, 2], [1, 4, 3, 1], [4, 2]]),
        ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]],
        *[["FSP", 3, 0, 1, 3], ["FSP", 3, 4, 2, 3], ["RE", 3, [0, 4, 1, 5, 2, 6, 3, 7]]],
        *[["CA", 2, 3, 5], ["CHR", 1, "shared", [2]], ["CA", 2, 3, 6], ["CHR", 0, "shared", [3]], ["CA", 1, 4, 6]],
        *[["FU", 5, [0, 1]], ["AN", 5, 0, 5], ["FU", 5, [1, 2]], ["AN", 5, 1, 4], ["FU", 5, [2, 3]], ["AN", 5, 2, 6]],
        *[["FU", 3, [0, 1]], ["SP", 3, 0, 96, [vector], 1], ["AN", 3, 1, 2], ["FFSP", 3, 0, [2, 1], 1, 1]],
        *[["AN", 3, 1, 6], ["FU", 1, [0, 1]], ["SP", 1, 0, 32, [1], 1], ["AN", 1, 1, 2]],
        *[["FFSP", 1, 0, [2, 1], 1, 1], ["AN", 1, 1, 6], ["PR", 4, 0, "auto_unroll_max_step$64"]],
    ]


def cpu_conv() -> Steps:
    """Tiles, a padding inside the convolution, a local cache, vectors and threads, as for a Cortex-A72."""
    return [
        ["CHW", 3, "local"],
        *tiled(3, [2, 8, 8, 8, 4, 3, 3], [[1, 1, 1], [2, 1, 4], [2, 2, 1], [1, 2, 2], [2], [1], [3]]),
        ["RE", 3, [0, 4, 8, 12, 1, 5, 9, 13, 16, 18, 20, 2, 6, 10, 14, 17, 19, 21, 3, 7, 11, 15]],
        *[["FSP", 4, 0, 1, 2], ["FSP", 4, 3, 2, 2], ["FSP", 4, 6, 3, 2], ["FSP", 4, 9, 4, 2]],
        ["RE", 4, [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]],
        *[["CA", 3, 4, 7], ["CA", 1, 3, 10], ["FU", 4, [0, 1, 2, 3]], ["AN", 4, 0, 3], ["AN", 4, 8, 2]],
        *[["AN", 3, 21, 2], ["PR", 3, 0, "auto_unroll_max_step$16"]],
    ]


def uneven_conv() -> Steps:
    """Factors that do not divide: 8 rows by 3, 8 columns by 5."""
    return [
        ["CI", 1],
        *tiled(3, [2, 8, 8, 8], [[1], [3], [5], [3]]),
        ["RE", 3, [0, 2, 4, 6, 8, 9, 10, 1, 3, 5, 7]],
        *[["FU", 3, [0, 1]], ["AN", 3, 0, 3], ["AN", 3, 9, 2]],
    ]


def reduced_in_parts() -> Steps:
    """A reduction whose partial results are a stage of their own."""
    return [
        *[["SP", 1, 1, 64, [8], 1], ["RF", 1, 2, 1], ["AN", 1, 0, 3], ["AN", 1, 1, 2], ["CA", 1, 2, 0]],
        ["AN", 2, 0, 1],
    ]


CPU_PROGRAMS: list[tuple[str, list[Any], Steps]] = [
    ("conv2d", CONV, cpu_conv()),
    ("uneven", ["conv2d_layer", 2, 4, 8, 8, 8, 3, 3, 1, 1], uneven_conv()),
    ("strided", ["conv2d_layer", 1, 3, 9, 9, 4, 3, 3, 2, "VALID"], [["CI", 1], ["FU", 3, [0, 1, 2]], ["AN", 3, 0, 3]]),
    ("depthwise", ["depthwise_conv2d_layer", 1, 4, 8, 8, 3, 3, 2, "SAME"], [["CA", 1, 3, 2], ["AN", 3, 0, 3]]),
    ("matmul", MATMUL, [["SP", 2, 1, 24, [8], 1], ["RE", 2, [0, 1, 3, 2]], ["AN", 2, 3, 2], ["AN", 2, 0, 3]]),
    ("outer", MATMUL, [["SP", 2, 1, 24, [4, 3], 0], ["RE", 2, [1, 0, 2, 4, 3]], ["AN", 2, 0, 3]]),
    ("average", ["pool_layer", "avg", 1, 3, 8, 8, 3, 3, 2, "SAME"], [["CI", 1], ["CA", 2, 3, 1], ["AN", 3, 0, 3]]),
    ("maximum", ["pool_layer", "max", 1, 3, 8, 8, 2, 2, 2, "VALID"], [["FU", 1, [0, 1, 2, 3]], ["AN", 1, 0, 3]]),
    ("sum", ["reduction_layer", [12, 64], 1, False], [["SP", 1, 1, 64, [16], 1], ["AN", 1, 2, 1]]),
    ("sum in parts", ["reduction_layer", [12, 64], 1, False], reduced_in_parts()),
    ("relu", ["relu_layer", 4, 6, 8], [["FU", 1, [0, 1, 2]], ["SP", 1, 0, 192, [8], 1], ["AN", 1, 1, 2]]),
    ("batch", ["batch_matmul_layer", 2, 4, 8, 6], [["FU", 2, [0, 1]], ["AN", 2, 0, 3]]),
]


def by_numpy(key: list[Any], inputs: list[np.ndarray]) -> np.ndarray:
    """What a task computes, in plain loops over the kernel."""
    name, *arguments = key
    if "matmul" in name:
        return inputs[0] @ inputs[1]
    if name == "relu_layer":
        return np.maximum(inputs[0], 0)
    if name == "reduction_layer":
        return inputs[0].sum(axis=arguments[1], keepdims=arguments[2])
    kernel, stride, padding = tuple(arguments[-4:-2]), arguments[-2], arguments[-1]
    top, left, bottom, right = paddings(padding, kernel)
    edge = -np.inf if arguments[0] == "max" else 0
    data = np.pad(inputs[0], ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=edge)
    windows = np.lib.stride_tricks.sliding_window_view(data, kernel, axis=(2, 3))[:, :, ::stride, ::stride]
    if name == "pool_layer":
        return windows.max((-1, -2)) if arguments[0] == "max" else windows.mean((-1, -2))
    if name == "depthwise_conv2d_layer":
        return np.einsum("nchwij,cij->nchw", windows, inputs[1][:, 0])
    return np.einsum("nchwij,kcij->nkhw", windows, inputs[1])


@pytest.mark.parametrize(("key", "steps"), [p[1:] for p in CPU_PROGRAMS], ids=[p[0] for p in CPU_PROGRAMS])
def test_a_replayed_program_computes_what_numpy_computes(key: list[Any], steps: Steps) -> None:
    task = workload(json.dumps(key))
    schedule = replay(task, steps)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(info.shape).astype(np.float32) for info in task.stages if info.placeholder]
    output = np.full(task.stages[-1].shape, np.nan, np.float32)
    tensors = [tvm.runtime.tensor(x) for x in (*inputs, output)]
    tvm.compile(schedule.mod, target=tvm.target.Target("llvm"))["main"](*tensors)
    np.testing.assert_allclose(tensors[-1].numpy(), by_numpy(key, inputs), rtol=1e-4, atol=1e-5)


def loops_of(schedule: Any, block: str) -> list[tuple[int, str]]:
    """Extent and thread axis of every loop around a block."""
    loops = [schedule.get(rv) for rv in schedule.get_loops(schedule.get_sblock(block))]
    return [(int(x.extent), str(x.thread_binding.thread_tag) if x.thread_binding is not None else "") for x in loops]


def test_a_gpu_program_has_the_records_blocks_threads_and_tiles() -> None:
    schedule = replay(workload(json.dumps(MATMUL)), gpu_matmul())
    threads = [(2, "blockIdx.x"), (2, "vthread.x"), (16, "threadIdx.x")]
    assert loops_of(schedule, "matmul_local") == [*threads, (2, ""), (3, "")]
    # The compute stage stands inside the copy's threads and adds its reduction and the two inner tiles.
    assert [loop for loop in loops_of(schedule, "matmul") if loop[0] > 1] == [
        *threads,
        *((4, ""), (4, ""), (3, ""), (2, ""), (2, "")),
    ]
    assert loops_of(schedule, "input0_shared")[-3:] == [(8, ""), (16, "threadIdx.x"), (1, "")]


@pytest.mark.parametrize(
    ("key", "steps", "reason"),
    [
        (["winograd_layer", 1], [], "unknown-workload"),
        (["matmul_layer", 4], [], "unknown-workload"),
        (MATMUL, [["XX", 2]], "unknown-step"),
        (MATMUL, [["AN", 2, 0, 11]], "unknown-step"),
        (MATMUL, [["SP", 9, 0, 16, [2], 1]], "wrong-shape"),
        (MATMUL, [["RE", 2, [0, 0, 1]]], "wrong-shape"),
        (MATMUL, [["CA", 2, 2, 0]], "wrong-shape"),
        (MATMUL, [["CHW", 2, "local"], ["CA", 2, 3, 1], ["CA", 3, 2, 0]], "wrong-shape"),
        (MATMUL, [["CI", 2]], "refused"),
    ],
)
def test_what_cannot_be_replayed_says_why(key: list[Any], steps: Steps, reason: str) -> None:
    with pytest.raises(ReplayError) as caught:
        replay(workload(json.dumps(key)), steps)
    assert caught.value.reason == reason
    assert caught.value.remedy
