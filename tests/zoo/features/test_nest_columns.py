"""Programs as numbers of their loop nests: the columns by hand, and that neither framework nor batch matters."""

import re
from math import log2, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.devices import list_devices
from tchub.zoo.features import get_schema, nest_columns
from tchub.zoo.features.nest_columns import PROGRAM_COLUMNS, NestEncoder, bound_scores, intensity
from tchub.zoo.primitives import PrimitiveSequence, from_ansor_steps, from_autotvm, from_trace_json
from test_ansor import gpu_matmul
from test_one_language import CONV, DENSE, ansor, knob, metaschedule
from trace_samples import matmul_trace, thread_trace

Tile = tuple[int, ...]

WIDTHS = [int(n) for n in re.findall(r"^\| (\d+) ", nest_columns.__doc__ or "", re.MULTILINE)]
# The rows of the table in `nest_columns`, in its order.
PARTS = (
    *("spatial", "reduction", "extents", "levels", "tiles", "reuse", "aligned", "totals"),
    *("others", "footprint", "fetches", "marks", "locations", "counts", "device"),
)
# What a tiling alone decides; no locations, which follow from it on a GPU and are left out.
OF_THE_TILING = (*PARTS[:8], "footprint", "locations")
EMPTY = PrimitiveSequence(())


def columns(program: PrimitiveSequence, units: float = 0.0) -> dict[str, np.ndarray]:
    """The row of one program, cut into the parts of the documented table."""
    row = NestEncoder().rows([program], units)[0]
    return dict(zip(PARTS, np.split(row, np.cumsum(WIDTHS)[:-1]), strict=True))


def close(actual: np.ndarray, *expected: float) -> bool:
    """Whether columns hold the logarithms of these sizes."""
    return bool(np.allclose(actual, np.log2(expected), atol=1e-5))


def autotvm_dense(spatial: list[Tile], inner: Tile) -> PrimitiveSequence:
    entity = [knob(name, tile) for name, tile in zip(("tile_x", "tile_y", "tile_k"), [*spatial, inner], strict=True)]
    rows, cols, depth = (prod(tile) for tile in (*spatial, inner))
    tensors = [["TENSOR", [rows, depth], "float32"], ["TENSOR", [cols, depth], "float32"]]
    return from_autotvm("dense_large_batch.cuda", [*tensors, None, "float32"], entity)


def tiles(parts: int, most: int = 9) -> st.SearchStrategy[Tile]:
    return st.tuples(*[st.integers(1, most)] * parts)


# Ansor's GPU programs: tilings that divide their extents or not, with or without a vector, cropped anywhere.
ansor_steps = st.builds(gpu_matmul, tiles(4), tiles(4), tiles(2), st.integers(1, 4000), st.sampled_from([0, 16, 1024]))
ansor_programs = st.builds(lambda steps, n: from_ansor_steps(steps[:n]), ansor_steps, st.integers(12, 25))
programs = st.one_of(
    ansor_programs,
    st.sampled_from([*CONV.values(), *DENSE.values(), EMPTY]),
    # One loop split once, into more levels than there are columns for too.
    st.builds(lambda n: from_ansor_steps([["SP", 0, 0, 4096, [2] * n, 1]]), st.integers(1, 8)),
    st.builds(lambda a, b, c: from_trace_json(matmul_trace(a, b, c)), tiles(4), tiles(4), tiles(2)),
    st.builds(lambda t, v: from_trace_json(thread_trace(t, v)), st.integers(0, 2), st.integers(0, 3)),
)


def test_the_documented_columns_are_those_there_are() -> None:
    assert (sum(WIDTHS), len(WIDTHS)) == (PROGRAM_COLUMNS, len(PARTS))


def test_a_convolution_by_hand() -> None:
    """n f y x = 1, 2 2 4 2, 4 1 4 1, 2 1 4 2 (blocks, virtual threads, threads, inside); rc ry rx = 4 4, 1 3, 3 1."""
    row = columns(CONV["ansor"])
    assert close(row["spatial"].reshape(4, 5)[1], 2, 2, 4, 2, 1)
    assert close(row["extents"], 1, 32, 16, 16, 16, 3, 3)
    assert close(row["levels"], 2 * 4 * 2, 2, 4 * 4 * 4, 2 * 2, 1, 4 * 3, 4 * 3, 1)
    block, thread, inner = row["tiles"].reshape(3, 4)
    assert close(block, 1, 16, 4, 8)
    assert close(thread, 1, 4, 1, 2)
    assert close(inner, 1, 2, 1, 2)
    # 64 threads are 2 whole warps; a thread holds 2 * 4 sums; no loop is padded.
    assert close(row["totals"], 2, 2**1.0, 2 * 2 * 2, 16 * 4 * 8, 4 * 3, 1)
    # The filters' slot as an operand: T = 512 products of a step read T / 16 numbers of one and 16 of the other.
    assert row["reuse"][1] == pytest.approx(-log2(1 / 16 + 16 / 512), abs=1e-5)


@given(st.lists(tiles(4, 6), min_size=2, max_size=2), tiles(3, 6))
def test_all_frameworks_give_a_tiling_the_same_columns(spatial: list[Tile], inner: Tile) -> None:
    theirs = autotvm_dense(spatial, inner), metaschedule("T_matmul_NT", spatial, [inner])
    first, *others = map(columns, (ansor(spatial, [inner], 3, (0, 1)), *theirs))
    for other in others:
        for part in OF_THE_TILING:
            assert np.allclose(first[part], other[part], atol=1e-5), part


@given(st.lists(programs, max_size=8), st.randoms(use_true_random=False), st.sampled_from([0.0, 40.0]))
def test_a_program_has_one_row_whatever_its_batch(batch: list[PrimitiveSequence], random: Any, units: float) -> None:
    order = random.sample(range(len(batch)), len(batch))
    together = NestEncoder().rows(batch, units)
    shuffled = NestEncoder().rows([batch[i] for i in order], units)
    alone = [NestEncoder().rows([program], units)[0] for program in batch]
    assert np.allclose(shuffled, together[order], atol=1e-5)
    assert np.allclose(together, np.reshape(alone, together.shape), atol=1e-5)


@given(programs, st.sampled_from([0.0, 1.0, 40.0, 108.0]))
def test_every_program_has_a_finite_row(program: PrimitiveSequence, units: float) -> None:
    row = NestEncoder().rows([program], units)
    assert (row.shape, row.dtype) == ((1, PROGRAM_COLUMNS), np.float32)
    assert np.isfinite(row).all()


@pytest.mark.parametrize("name", ["nest-gpu", "nest-cpu"])
def test_a_device_changes_its_own_columns_alone(name: str) -> None:
    schema, program = get_schema(name), DENSE["metaschedule"]
    without = schema.extract([program])[0, 0]
    rows = [schema.extract([program], list_devices(schema.kind)[place])[0, 0] for place in (0, -1)]
    program_only = PROGRAM_COLUMNS - WIDTHS[-1]
    assert not without[program_only:].any()
    for place, row in zip((0, -1), rows, strict=True):
        assert np.array_equal(row[:program_only], without[:program_only])
        assert np.array_equal(row[PROGRAM_COLUMNS:], list_devices(schema.kind)[place].hardware_row())
    assert (rows[0][program_only:PROGRAM_COLUMNS] != rows[1][program_only:PROGRAM_COLUMNS]).any()


def test_the_intensity_of_a_product_is_that_of_its_tile() -> None:
    def of(*tiles: tuple[int, ...]) -> float:
        rows = NestEncoder().rows([from_trace_json(matmul_trace(*tiles))])
        return float(intensity(rows, "cpu")[0])

    # 8 x 16 elements of the output take (8 + 16) elements for each element of the reduction: 128 pairs.
    assert of((4, 2, 2, 4), (2, 1, 1, 16), (16, 4)) == pytest.approx(128 / 24 / 2)
    assert of((64, 1, 1, 1), (32, 1, 1, 1), (64, 1)) == pytest.approx(1 / 2 / 2)


def test_bounds_are_the_shares_of_the_latency_that_the_roofline_explains() -> None:
    # 64 x 32 x 64 products, of 128 pairs for 24 elements of 4 bytes each.
    program, operations = from_trace_json(matmul_trace((4, 2, 2, 4), (2, 1, 1, 16), (16, 4))), 2 * 64 * 32 * 64
    rows = NestEncoder().rows([program, program, EMPTY])
    latency = np.array([1e-3, 1e-6, 1e-3])
    scores = bound_scores(rows, "cpu", latency, (operations * 1e4, operations * 1e3))
    assert scores[0] == pytest.approx([24 * 4 / (2 * 128), 0.1])
    assert scores[1].tolist() == [1, 1], "no more than all of it"
    assert np.isnan(scores[2]).all(), "an operator that its axes do not tell"
    assert np.isnan(bound_scores(rows, "cpu", latency, None)).all()
