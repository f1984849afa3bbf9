"""Programs on tile registers as they are compiled: what they read ahead, copy, overlap and share among threads."""

from typing import Any

import numpy as np
import pytest
import torch
from relax_kit import build
from tchub.hub.device.tile_registers import with_tile_registers
from tchub.hub.search.candidates import random_candidates
from tile_kit import RUNS, XEON, dtypes, lowered, outputs, program, tile_tasks
from torch import nn
from tvm.ir import Call
from tvm.sym import Analyzer
from tvm.tirx import AllocBuffer, For, ForKind, IntImm, Max, Var
from tvm_ffi import structural_map, structural_walk


def test_rows_of_a_column_of_tiles_read_the_next_ones_weights_ahead() -> None:
    (task,) = tile_tasks(lowered(nn.Linear(256, 128, bias=False), torch.randn(128, 256)))
    lines = 256 * 32 // 32  # of the caches, that hold the weights of 32 columns
    body = with_tile_registers(program(task, [[1, 4], [4, 1]]))["main"].body
    requests: list[Any] = []
    structural_walk(body, (Call, lambda call: requests.append(call) if call.op.name == "tirx.prefetch" else None))
    offsets = [call.args[0].args[0].indices[-1] for call in requests]
    next_ones = [one for one in offsets if not isinstance(one, IntImm)]  # the others are two pages on
    variables: list[Any] = []
    structural_walk(next_ones[0], (Var, variables.append))
    column, row, term = sorted(variables, key=lambda var: -value(next_ones[0], {var: 1}))
    read = [
        value(offset, {column: 2, row: i, term: k}) // 32 for i in range(4) for k in range(8) for offset in next_ones
    ]
    assert read == list(range(3 * lines, 4 * lines))


def value(offset: Any, values: dict[Any, int]) -> int:
    """Return an offset where its variables have these values; others are 0."""

    def number(var: Any) -> Any:
        return IntImm("int64", next((n for one, n in values.items() if var.same_as(one)), 0))

    simple: Any = Analyzer().simplify(structural_map(offset, (Var, number)))
    return int(simple)


def test_a_column_of_few_rows_reads_its_own_weights_ahead() -> None:
    (task,) = tile_tasks(lowered(nn.Linear(256, 128, bias=False), torch.randn(64, 256)))
    ahead = str(with_tile_registers(program(task, [[1, 2], [4, 1]]))).count("T.prefetch(")
    assert ahead == 2, "more at once would keep tiles from being read"


@pytest.mark.parametrize(("terms", "overlap"), [(512, True), (480, False)], ids=["many steps", "few steps"])
def test_a_tile_is_brought_to_its_end_during_the_sums_of_the_next_one(terms: int, overlap: bool) -> None:
    (task,) = tile_tasks(lowered(nn.Sequential(nn.Linear(terms, 96), nn.ReLU()), torch.randn(64, terms)))
    body = with_tile_registers(program(task, [[1, 2], [3, 1]]))["main"].body
    maxima: list[Any] = []
    structural_walk(body, (Max, maxima.append))
    assert len(maxima) == (2 if overlap else 1), "the last tile is followed by none"
    assert "for tile in range(T.int64(6))" in str(body) or not overlap


@pytest.mark.parametrize(("rows", "copied"), [(64, False), (48, False), (40, True), (67, True)])
def test_rows_of_bfloat16_are_read_where_they_lie(rows: int, copied: bool) -> None:
    """A register reads 16. Rows at the end are copied where it would read beyond the data."""
    module = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 32), nn.ReLU())
    tasks = tile_tasks(lowered(module, torch.randn(rows, 64)))
    second = next(task for task in tasks if dtypes(task)[0] == "bfloat16")
    right = outputs(build(second.mod), second)
    for candidate in random_candidates(second, XEON, 3):
        mod = with_tile_registers(candidate.mod)
        buffers: list[Any] = []
        structural_walk(mod["main"].body, (AllocBuffer, buffers.append))
        assert any(str(one.buffer.dtype) == "uint16" for one in buffers) == copied
        if RUNS:
            ours = outputs(build(mod, XEON), second)
            np.testing.assert_allclose(ours, right, rtol=1e-2, atol=1e-4 * np.abs(right).max())


@pytest.mark.parametrize(("rows", "decisions", "parts"), [(40, [[1, 2], [2, 3]], 2), (128, [[2, 2], [6, 1]], 12)])
def test_threads_share_the_columns_of_few_rows(rows: int, decisions: list[list[int]], parts: int) -> None:
    (task,) = tile_tasks(lowered(nn.Linear(96, 192), torch.randn(rows, 96)))
    scheduled = program(task, decisions)
    loops: list[Any] = []
    shared = with_tile_registers(scheduled, 7)
    structural_walk(shared["main"].body, (For, loops.append))
    blocks = [int(loop.extent) for loop in loops if loop.kind == ForKind.PARALLEL]
    assert blocks == [parts], "of rows, by those of columns"
    if RUNS:
        one = outputs(build(with_tile_registers(scheduled), XEON), task)
        assert np.array_equal(outputs(build(shared, XEON), task), one)
