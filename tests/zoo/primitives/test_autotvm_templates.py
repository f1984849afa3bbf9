"""Where the AutoTVM templates put a block and in which order, as TVM's own schedules do."""

from __future__ import annotations

import pytest
from autotvm_samples import SAMPLES
from tchub.zoo.primitives import Primitive, from_autotvm


def told(template: str) -> list[Primitive]:
    return list(from_autotvm(template, *SAMPLES[template]))


def index(primitives: list[Primitive], kind: str, name: str) -> int:
    return next(i for i, p in enumerate(primitives) if p.kind == kind and name in p.names)


@pytest.mark.parametrize("template", ["conv2d_nchw.cuda", "depthwise_conv2d_nchw.cuda", "conv2d_nchw_winograd.cuda"])
def test_a_kernel_s_unroll_limit_needs_no_loop_of_its_own(template: str) -> None:
    """All splits of the output are tiles, and the limit is the first block loop's."""
    primitives = told(template)
    limit = next(p for p in primitives if p.kind == "Unroll" and "explicit" in p.names)
    tiles = [p for p in primitives if p.kind == "Split" and p.numbers[0] == limit.numbers[0]]
    assert {len(p.numbers) - 3 for p in tiles} == {4}
    assert limit.numbers[1] == 0


def test_winograd_inlines_the_inverse_matrix_after_the_output_is_bound() -> None:
    primitives = told("conv2d_nchw_winograd.cuda")
    bound = max(i for i, p in enumerate(primitives) if p.kind == "Bind")
    assert index(primitives, "ComputeInline", "@A") > bound


def test_a_batch_of_products_binds_the_second_operand_before_it_orders_it() -> None:
    kinds = [p.kind for p in told("batch_matmul.cuda") if p.kind in ("Bind", "Reorder")]
    # Output, product, then the two fetches.
    assert kinds == ["Reorder", *["Bind"] * 5, "Reorder", "Reorder", "Bind", "Bind", "Bind", "Bind", "Reorder"]


def test_padded_data_on_a_cpu_are_vectors_of_a_block_of_channels() -> None:
    primitives = told("conv2d_NCHWc.x86")
    padded = index(primitives, "Vectorize", "@data_pad")
    assert [p.kind for p in primitives[padded : padded + 3]] == ["Vectorize", "Fuse", "Parallel"]
    assert told("depthwise_conv2d_NCHWc.x86")[0].names == ("@PaddedInput",)


def test_arm_packs_the_data_of_a_depthwise_convolution_row_by_row() -> None:
    primitives = told("depthwise_conv2d_nchw.arm_cpu")
    data = next(p.numbers[0] for p in primitives if p.kind == "Split")  # the first copy that is split
    assert any(p.kind == "ComputeAt" and p.numbers[0] == data for p in primitives)


def test_arm_leaves_the_copy_of_its_output_without_vectors() -> None:
    primitives = told("conv2d_nchw_spatial_pack.arm_cpu")
    product = index(primitives, "CacheRead", "@conv")
    blocks = {p.numbers[0] for p in primitives if p.kind == "Vectorize"}
    assert blocks <= {primitives[product].numbers[-1]}


@pytest.mark.parametrize("template", ["conv2d_NCHWc.x86", "depthwise_conv2d_NCHWc.x86"])
def test_the_block_of_channels_is_told(template: str) -> None:
    """Its length is the vector's: programs that differ in nothing else are different programs."""
    args, entity = SAMPLES[template]
    channels = args[1][1][0]
    for lanes in (1, 2, 4, 8):
        changed = [[name, kind, [-1, lanes] if name == "tile_oc" else value] for name, kind, value in entity]
        primitives = list(from_autotvm(template, args, changed))
        tile = (channels, channels // lanes, 1, 1, lanes)
        assert any(p.kind == "Split" and p.numbers[2:] == tile for p in primitives)


@pytest.mark.parametrize("template", ["conv2d_NCHWc.x86", "depthwise_conv2d_NCHWc.x86", "batch_matmul.x86"])
def test_x86_tiles_are_told_in_as_many_levels_as_metaschedule_has(template: str) -> None:
    """Four of each loop of the output, two of each of the reduction."""
    parts = [len(p.numbers) - 3 for p in told(template) if p.kind == "Split"]
    assert set(parts) == {4, 2}
    assert parts == sorted(parts, reverse=True)
