"""Made-up AutoTVM records: a task and knobs for each template, small enough to follow by hand."""

import json
from typing import Any

GPU_CONV = [
    ["TENSOR", [2, 16, 14, 14], "float32"],
    ["TENSOR", [32, 16, 3, 3], "float32"],
    *([2, 2], [1, 1, 1, 1], [1, 1], "float32"),
]
GPU_DEPTHWISE = [["TENSOR", [1, 16, 8, 8], "float32"], ["TENSOR", [16, 1, 3, 3], "float32"], 1, "SAME", 1, "float32"]
CPU_CONV = [
    ["TENSOR", [1, 16, 14, 14], "float32"],
    ["TENSOR", [32, 16, 3, 3], "float32"],
    *([1, 1], [1, 1, 1, 1], [1, 1], "NCHW", "NCHW", "float32"),
]
CPU_DEPTHWISE = [CPU_CONV[0], ["TENSOR", [16, 1, 3, 3], "float32"], *CPU_CONV[2:]]
DENSE = [["TENSOR", [64, 128], "float32"], ["TENSOR", [96, 128], "float32"], None, "float32"]
BATCH = [["TENSOR", [4, 32, 16], "float32"], ["TENSOR", [4, 24, 16], "float32"], [4, 32, 24]]

_UNROLL = [["auto_unroll_max_step", "ot", 512], ["unroll_explicit", "ot", 1]]
_X86 = [["tile_ic", "sp", [-1, 8]], ["tile_oc", "sp", [-1, 16]], ["tile_ow", "sp", [-1, 4]]]
_LARGE = [["tile_x", "sp", [-1, 2, 4, 2]], ["tile_y", "sp", [-1, 2, 4, 3]], ["tile_k", "sp", [-1, 2, 8]]]
_SMALL = [["tile_k", "sp", [-1, 32]]]

SAMPLES: dict[str, tuple[list[Any], list[Any]]] = {
    "conv2d_nchw.cuda": (
        GPU_CONV,
        [
            *(["tile_f", "sp", [-1, 2, 4, 2]], ["tile_y", "sp", [-1, 1, 7, 1]], ["tile_x", "sp", [-1, 1, 1, 7]]),
            *(["tile_rc", "sp", [-1, 4]], ["tile_ry", "sp", [-1, 3]], ["tile_rx", "sp", [-1, 1]], *_UNROLL),
        ],
    ),
    "conv2d_nchw_winograd.cuda": (
        [["TENSOR", [1, 16, 8, 8], "float32"], ["TENSOR", [32, 16, 3, 3], "float32"], 1, 1, 1, "float32"],
        [
            *(["tile_b", "sp", [-1, 1, 1, 1]], ["tile_y", "sp", [-1, 2, 8, 1]], ["tile_x", "sp", [-1, 1, 2, 2]]),
            *(["tile_rc", "sp", [-1, 8]], *_UNROLL),
        ],
    ),
    "depthwise_conv2d_nchw.cuda": (
        GPU_DEPTHWISE,
        [
            *(["tile_f", "sp", [-1, 1, 4, 2]], ["tile_y", "sp", [-1, 1, 4, 1]], ["tile_x", "sp", [-1, 2, 2, 2]]),
            *_UNROLL,
        ],
    ),
    "dense_small_batch.cuda": (DENSE, _SMALL),
    "dense_small_batch.gpu": (DENSE, _SMALL),
    "dense_large_batch.cuda": (DENSE, _LARGE),
    "dense_large_batch.gpu": (DENSE, _LARGE),
    "batch_matmul.cuda": (
        BATCH,
        [["tile_y", "sp", [-1, 8, 2]], ["tile_x", "sp", [-1, 4, 3]], ["tile_k", "sp", [-1, 4]], *_UNROLL],
    ),
    "dense_nopack.x86": (DENSE, [["tile_y", "sp", [-1, 4]], ["tile_x", "sp", [-1, 8]], ["tile_k", "sp", [-1, 16]]]),
    "dense_pack.x86": (
        DENSE,
        [
            *(["tile_y", "sp", [-1, 2, 4]], ["tile_x", "sp", [-1, 2, 16]]),
            *(["tile_k", "sp", [-1, 8]], ["tile_inner", "sp", [-1, 2]]),
        ],
    ),
    "batch_matmul.x86": (BATCH, [["tile_y", "sp", [-1, 8]], ["tile_x", "sp", [-1, 4]], ["tile_k", "sp", [-1, 8]]]),
    "conv2d_NCHWc.x86": (CPU_CONV, [*_X86, ["unroll_kw", "ot", True]]),
    "depthwise_conv2d_NCHWc.x86": (CPU_DEPTHWISE, [*_X86, ["unroll_kw", "ot", False]]),
    "conv2d_nchw_spatial_pack.arm_cpu": (
        CPU_CONV,
        [
            *(["tile_co", "sp", [-1, 8]], ["tile_oh", "sp", [-1, 2]], ["tile_ow", "sp", [-1, 7]]),
            ["reorder_0", "re", [0, 1, 2, 3, 4, 5, 6, 9, 7, 8]],
            *(["ann_reduce", "an", ["none", "unroll"]], ["ann_spatial", "an", ["unroll", "none", "vec"]]),
        ],
    ),
    "conv2d_nchw_winograd.arm_cpu": (
        [["TENSOR", [1, 16, 16, 16], "float32"], *CPU_CONV[1:]],
        [
            *(["tile_p", "sp", [-1, 4]], ["tile_k", "sp", [-1, 8]], ["tile_c", "sp", [-1, 4]]),
            *(["ann_reduce", "an", ["unroll"]], ["ann_spatial", "an", ["none", "vec"]]),
        ],
    ),
    "depthwise_conv2d_nchw.arm_cpu": (
        CPU_DEPTHWISE,
        [
            *(["tile_c", "sp", [-1, 4]], ["tile_h", "sp", [-1, 2]], ["tile_w", "sp", [-1, 7]]),
            ["ann", "an", ["unroll", "none", "vec"]],
        ],
    ),
}
"""Template -> (arguments, entity)."""


def record(
    template: str = "conv2d_nchw.cuda",
    args: list[Any] | None = None,
    entity: list[Any] | None = None,
    costs: Any = (2e-3, 1e-3, 3e-3),
    error: int = 0,
    target: str = "cuda -keys=cuda,gpu -max_num_threads=1024",
) -> str:
    """A line of a log; arguments and knobs are the template's sample unless given."""
    sample_args, sample_entity = SAMPLES.get(template, ([], []))
    arguments = sample_args if args is None else args
    config = {"index": 7, "code_hash": None, "entity": sample_entity if entity is None else entity}
    result = [list(costs), error, 1.5, 1600000000.0]
    data = {"input": [target, template, arguments, {}], "config": config, "result": result}
    return json.dumps(data | {"version": 0.2, "tvm_version": "0.10.0"})
