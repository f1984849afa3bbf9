"""Small MetaSchedule traces, made by hand, for the tests of the readers and the features."""

from collections.abc import Sequence

CHOICES = [0, 16, 64, 512]


def matmul_trace(
    rows: Sequence[int] = (2, 2, 4, 8),
    columns: Sequence[int] = (4, 2, 1, 16),
    inner: Sequence[int] = (32, 4),
    location: int = 3,
    unroll: int = 2,
) -> list:
    """A CPU matmul with a relu: two spatial tiles, a reduction tile, a sampled location, an unroll limit."""
    insts = [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["GetSBlock", [], ["relu", "main"], ["b1"]],
        ["GetSBlock", [], ["root", "main"], ["b2"]],
        ["Annotate", ["b0", '"SSRSRS"'], ["meta_schedule.tiling_structure"], []],
        ["GetLoops", ["b0"], [], ["l3", "l4", "l5"]],
        ["SamplePerfectTile", ["l3"], [4, 64], ["v6", "v7", "v8", "v9"]],
        ["Split", ["l3", "v6", "v7", "v8", "v9"], [1, 0], ["l10", "l11", "l12", "l13"]],
        ["SamplePerfectTile", ["l4"], [4, 64], ["v14", "v15", "v16", "v17"]],
        ["Split", ["l4", "v14", "v15", "v16", "v17"], [1, 0], ["l18", "l19", "l20", "l21"]],
        ["SamplePerfectTile", ["l5"], [2, 64], ["v22", "v23"]],
        ["Split", ["l5", "v22", "v23"], [1, 0], ["l24", "l25"]],
        ["Reorder", ["l10", "l18", "l11", "l19", "l24", "l12", "l20", "l25", "l13", "l21"], [], []],
        ["CacheWrite", ["b0", []], [0, "global"], ["b26"]],
        ["ReverseComputeAt", ["b26", "l19"], [1, -1], []],
        ["SampleComputeLocation", ["b1"], [], ["l27"]],
        ["ComputeAt", ["b1", "l27"], [1, -1], []],
        ["Annotate", ["b2", 16], ["meta_schedule.parallel"], []],
        ["Annotate", ["b2", 64], ["meta_schedule.vectorize"], []],
        ["SampleCategorical", [], [CHOICES, [0.25] * 4], ["v28"]],
        ["Annotate", ["b2", "v28"], ["meta_schedule.unroll_explicit"], []],
    ]
    decisions = [[5, list(rows)], [7, list(columns)], [9, list(inner)], [14, location], [18, unroll]]
    return [insts, decisions]


def thread_trace(threads: int = 1, vector: int = 3) -> list:
    """A GPU copy: fused loops split by a sampled thread count, a cooperative fetch into shared memory."""
    insts = [
        ["GetBlock", [], ["copy", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["Fuse", ["l1", "l2"], [1], ["l3"]],
        ["SampleCategorical", [], [[32, 64, 128], [0.3, 0.3, 0.4]], ["v4"]],
        ["Split", ["l3", "None", "v4"], [1], ["l5", "l6"]],
        ["Bind", ["l5"], ["blockIdx.x"], []],
        ["Bind", ["l6"], ["threadIdx.x"], []],
        ["CacheRead", ["b0", ["b0"]], [0, "shared"], ["b7"]],
        ["ComputeAt", ["b7", "l6"], [1, -1], []],
        ["SampleCategorical", [], [[1, 2, 3, 4], [0.25] * 4], ["v8"]],
        ["Annotate", ["b7", "v8"], ["meta_schedule.cooperative_fetch"], []],
    ]
    return [insts, [[3, threads], [9, vector]]]
