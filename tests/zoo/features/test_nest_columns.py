"""Programs as numbers of their loop nests: the columns by hand, and that neither framework nor batch matters."""

from __future__ import annotations

import re
from math import log2, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.zoo.devices import Device, list_devices
from tchub.zoo.features import DeviceKindError, get_schema, nest_columns
from tchub.zoo.features.nest_columns import PROGRAM_COLUMNS, NestEncoder
from tchub.zoo.primitives import Primitive, PrimitiveSequence, from_ansor_steps, from_autotvm, from_trace_json
from test_one_language import CONV, CONV_REDUCED, CONV_SPATIAL, DENSE, FRAMEWORKS, ansor, knob, metaschedule
from test_ansor import gpu_matmul
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


def device(kind: str, place: int = 0) -> Device:
    return [d for d in list_devices() if d.kind == kind][place]


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


# What the columns are


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


def test_what_a_convolution_reads_by_hand() -> None:
    row = columns(CONV["ansor"])["footprint"]
    images, filters = 4 * (4 + 3 - 1) * (8 + 1 - 1), 16 * 4 * 3 * 1  # a block, at a step of rc ry rx = 4 3 1
    assert close(row[:3], images, filters, images + filters)
    assert close(row[3:6], 2, 4, 6)  # a thread, at a step of 1 1 1
    steps, blocks = 4 * 1 * 3, 2 * 4 * 2
    assert close(row[6], blocks * steps * (images + filters))
    assert close(row[7:9], 512 * 12 / (images + filters), 8 / 6)
    assert close(row[9:12], 8, 4 * 2, steps)
    assert row[12:].tolist() == [0, 0, 0, 1]  # channels first; matmul, depthwise, convolution


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_matrix_product_by_hand(framework: str) -> None:
    """64 x 64 x 128, tiled 4 2 4 2 and 2 2 4 4 and 8 4 4."""
    row = columns(DENSE[framework])
    assert close(row["levels"], 8, 4, 16, 8, 1, 8, 4, 4)
    warps, used, *_ = row["totals"]
    assert (warps, used) == (0, 0.5)  # 16 threads: half a warp
    assert close(row["aligned"], 1, 1, 4, 4, 1, 1, 2, 4)
    read = row["footprint"]
    assert close(read[:3], 16 * 16, 32 * 16, 48 * 16)
    assert close(read[3:6], 4 * 4, 8 * 4, 12 * 4)
    assert read[13:].tolist() == [1, 0, 0]


def test_a_cpu_program_by_hand() -> None:
    row = columns(from_trace_json(matmul_trace((2, 2, 4, 8), (4, 2, 1, 16), (32, 4), location=3, unroll=2)))
    rows, cols = row["spatial"].reshape(4, 5)[2:]
    assert close(rows[rows > 0], 2, 2, 4, 8)  # from the outermost level to the innermost
    assert close(cols[cols > 0], 4, 2, 16)
    assert close(rows[0] + cols[0], 2 * 4)
    assert close(row["reduction"].reshape(3, 3)[0], 32, 1, 4)  # the innermost level is always the last
    # Unroll limit, loops unrolled whole, vector limit, vector length, parallel limit, bindings.
    assert np.allclose(row["marks"], [log2(1 + 64), 0, log2(64), 0, log2(2 + 16), 0])
    # The copy at the loop that it was sent to, the relu at the location that was sampled.
    assert row["locations"].tolist() == [(3 + 3) / 4, (3 + 3) / 4, 0, 0]


def test_a_fetch_is_as_wide_in_the_words_of_ansor_as_in_those_of_metaschedule() -> None:
    assert close(columns(from_ansor_steps(gpu_matmul()))["fetches"], 2, 1, 1)
    assert close(columns(from_trace_json(thread_trace(vector=1)))["fetches"], 2, 1, 1)


def test_what_is_split_beside_the_tiled_block_stands_by_itself() -> None:
    """A fused statement's loop, told by its extent, innermost factor and the product of the middle ones."""
    split = [(0, 0, 64, 4, 2, 8), (0, 3, 64, 2, 4, 8), (0, 6, 32, 8, 4), (1, 0, 24, 2, 4, 3)]
    row = columns(PrimitiveSequence(tuple(Primitive("Split", numbers) for numbers in split)))
    assert close(row["extents"], 1, 1, 64, 64, 32, 1, 1)
    assert close(row["others"].reshape(4, 3)[0], 24, 3, 4)


# That it does not matter who tells a program, nor with which others


@settings(max_examples=60, deadline=None)
@given(st.lists(tiles(4, 6), min_size=2, max_size=2), tiles(3, 6))
def test_all_frameworks_give_a_tiling_the_same_columns(spatial: list[Tile], inner: Tile) -> None:
    theirs = autotvm_dense(spatial, inner), metaschedule("T_matmul_NT", spatial, [inner])
    first, *others = map(columns, (ansor(spatial, [inner], 3, (0, 1)), *theirs))
    for other in others:
        for part in OF_THE_TILING:
            assert np.allclose(first[part], other[part], atol=1e-5), part


def test_a_reduction_of_two_levels_is_the_same_tile_wherever_its_third_is() -> None:
    """AutoTVM's convolutions tile a reduction twice, the others three times: all that differs is the thread's step."""
    rows = {framework: columns(CONV[framework]) for framework in FRAMEWORKS}
    for row in rows.values():
        outer, *inside = row["reduction"].reshape(3, 3).T
        assert close(outer, 4, 1, 3)
        assert close(sum(inside, np.zeros(3)), 4, 3, 1)
        for part in ("spatial", "extents", "tiles", "reuse", "aligned", "totals"):
            assert np.allclose(row[part], rows["ansor"][part], atol=1e-5)
        assert np.allclose(np.delete(row["footprint"] - rows["ansor"]["footprint"], [3, 4, 5, 8]), 0, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(programs, max_size=8), st.randoms(use_true_random=False), st.sampled_from([0.0, 40.0]))
def test_a_program_has_one_row_whatever_its_batch(batch: list[PrimitiveSequence], random: Any, units: float) -> None:
    order = random.sample(range(len(batch)), len(batch))
    together = NestEncoder().rows(batch, units)
    shuffled = NestEncoder().rows([batch[i] for i in order], units)
    alone = [NestEncoder().rows([program], units)[0] for program in batch]
    assert np.allclose(shuffled, together[order], atol=1e-5)
    assert np.allclose(together, np.reshape(alone, together.shape), atol=1e-5)


def test_convolutions_of_two_layouts_keep_theirs_in_one_batch() -> None:
    """One structure: only the extents tell which reduction is the channels'."""
    (n, f, y, x), (rc, ry, rx) = CONV_SPATIAL, CONV_REDUCED
    first, last = ansor([n, f, y, x], [rc, ry, rx], 4, (1, 2)), ansor([n, y, x, f], [ry, rx, rc], 4, (1, 2))
    both = NestEncoder().rows([first, last])
    assert np.allclose(both, [NestEncoder().rows([p])[0] for p in (first, last)])
    assert [columns(p)["footprint"][12] for p in (first, last)] == [0, 1]
    at = sum(WIDTHS[: PARTS.index("footprint")])
    assert np.allclose(*both[:, at : at + 9])  # the same program, with its axes in another order


@settings(max_examples=30, deadline=None)
@given(st.lists(programs, min_size=1, max_size=5))
def test_what_the_encoder_remembers_changes_no_row(batch: list[PrimitiveSequence]) -> None:
    encoder = NestEncoder()
    assert np.array_equal(encoder.rows(batch), encoder.rows(batch))


def test_a_memory_that_is_full_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nest_columns, "_PRIMITIVES", 8)
    encoder = NestEncoder()
    batch = [*CONV.values(), *DENSE.values()]
    rounds = [[encoder.rows([program])[0] for program in batch] for _ in range(2)]
    assert np.array_equal(rounds[0], rounds[1])
    assert np.allclose(rounds[0], NestEncoder().rows(batch), atol=1e-5)


# What holds of every program


@settings(max_examples=60, deadline=None)
@given(tiles(4), tiles(4), tiles(2), st.integers(1, 300), st.booleans())
def test_levels_of_a_slot_multiply_to_its_extent(rows: Tile, cols: Tile, inner: Tile, size: int, exact: bool) -> None:
    """...where the factors divide it; otherwise what is more is the padding."""
    size = size * prod(rows) * prod(cols) * prod(inner) if exact else size
    row = columns(from_ansor_steps(gpu_matmul(rows, cols, inner, size)))
    spatial, reduction = row["spatial"].reshape(4, 5).sum(1), row["reduction"].reshape(3, 3).sum(1)
    assert np.allclose([*spatial, *reduction], row["extents"], atol=1e-4)
    whole = [tile * -(-size // tile) for tile in map(prod, (rows, cols, inner))]
    assert np.allclose(row["extents"][[2, 3, 4]], np.log2(whole), atol=1e-4)
    assert row["totals"][5] == pytest.approx(sum(map(log2, whole)) - 3 * log2(size), abs=1e-4)
    assert not exact or abs(row["totals"][5]) < 1e-4


@settings(max_examples=60, deadline=None)
@given(programs, st.sampled_from([0.0, 1.0, 40.0, 108.0]))
def test_every_program_has_a_finite_row(program: PrimitiveSequence, units: float) -> None:
    row = NestEncoder().rows([program], units)
    assert (row.shape, row.dtype) == ((1, PROGRAM_COLUMNS), np.float32)
    assert np.isfinite(row).all()


@settings(max_examples=40, deadline=None)
@given(ansor_steps, ansor_steps)
def test_tilings_that_differ_have_rows_that_differ(a: list[Any], b: list[Any]) -> None:
    one, other = (from_ansor_steps(steps) for steps in (a, b))
    assert np.array_equal(*NestEncoder().rows([one, other])) == (one.primitives == other.primitives)


@pytest.mark.parametrize("name", ["nest-cpu", "nest-gpu"])
def test_a_program_without_primitives_and_a_batch_without_programs(name: str) -> None:
    schema = get_schema(name)
    assert schema.extract([EMPTY]).shape == (1, 1, schema.width)
    assert np.isfinite(schema.extract([EMPTY], device(schema.kind))).all()
    assert schema.extract([]).shape == (0, 1, schema.width)


def test_levels_beyond_those_there_are_fold_into_the_innermost() -> None:
    row = columns(from_ansor_steps([["SP", 0, 0, 2**12, [2] * 7, 1]]))
    assert close(row["spatial"].reshape(4, 5)[3], 2**5, 2, 2, 2, 2**4)


def test_an_extent_that_is_not_told_is_no_padding() -> None:
    steps = [["FU", 1, [0, 1]], ["SP", 1, 0, 0, [8], 1], ["AN", 1, 0, 5], ["AN", 1, 1, 6]]
    row = columns(from_ansor_steps(steps))
    assert close(row["levels"][[0, 2]], 1, 8)
    assert row["totals"][5] == 0


# The device


@pytest.mark.parametrize("name", ["nest-gpu", "nest-cpu"])
def test_a_device_changes_its_own_columns_alone(name: str) -> None:
    schema, program = get_schema(name), DENSE["metaschedule"]
    without = schema.extract([program])[0, 0]
    rows = [schema.extract([program], device(schema.kind, place))[0, 0] for place in (0, -1)]
    program_only, tail = PROGRAM_COLUMNS - WIDTHS[-1], schema.width - PROGRAM_COLUMNS
    assert not without[program_only:].any()
    for place, row in zip((0, -1), rows, strict=True):
        assert np.array_equal(row[:program_only], without[:program_only])
        assert np.array_equal(row[PROGRAM_COLUMNS:], device(schema.kind, place).hardware_row(tail))
    assert (rows[0][program_only:PROGRAM_COLUMNS] != rows[1][program_only:PROGRAM_COLUMNS]).any()


def test_blocks_are_counted_by_compute_unit() -> None:
    """16 blocks of 64 threads on 12 units: two waves, the second a third full."""
    waves, used, threads = columns(CONV["ansor"], units=12)["device"]
    assert waves == pytest.approx(log2(16 / 12), abs=1e-5)
    assert used == pytest.approx((16 / 12) / 2)
    assert threads == pytest.approx(log2(16 * 64 / 12), abs=1e-5)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 300))
def test_a_grid_that_fills_every_unit_wastes_none(rows: int, cols: int, more: int) -> None:
    """The logarithms of its factors must not make it a block more."""
    grid = [(rows, 1, 1, 1), (cols * more, 1, 1, 1)]
    program = metaschedule("T_matmul_NT", grid, [(1, 1, 1)])
    assert columns(program, units=rows * cols * more)["device"].tolist() == [0, 1, 0]


@pytest.mark.parametrize(("kind", "other"), [("gpu", "cpu"), ("cpu", "gpu")])
def test_a_device_of_the_other_kind_is_refused(kind: str, other: str) -> None:
    with pytest.raises(DeviceKindError, match=f"nest-{other}"):
        get_schema(f"nest-{other}").extract([CONV["ansor"]], device(kind))
