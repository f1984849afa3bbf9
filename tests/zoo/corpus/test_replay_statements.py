"""Statement features: what TVM gives for a program, as a matrix, made once."""

import json
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.corpus import Program, Task
from tchub.zoo.corpus.replay import statements
from tchub.zoo.corpus.replay.statements import STORE_FILE, statement_features
from tchub.zoo.features.columns import OPS, PERSTORE_WIDTH, STATEMENT_WIDTH
from tchub.zoo.features.statements import ITERATIONS, statement_matrices

KEYS = {"matmul": ["matmul_layer", 16, 32, 24], "relu": ["relu_layer", 8, 32]}
BLOCKS, THREADS, VIRTUAL, IS_GPU, UNROLL = 50, 53, 56, 49, 163


def program(task: str, steps: Any, target: str = "cuda -keys=cuda,gpu", framework: str = "ansor") -> Program:
    trace = json.dumps(steps)
    return Program(task, trace[:16], trace, "tuned", (1.0,), 1.0, "v100", json.dumps(target), framework=framework)


def threads(count: int, virtual: int = 1) -> list[list[Any]]:
    """An elementwise program of 256 elements."""
    return [
        *[["FU", 1, [0, 1]], ["SP", 1, 0, 256, [virtual, count], 1]],
        *[["AN", 1, 0, 5], ["AN", 1, 1, 4], ["AN", 1, 2, 6], ["PR", 1, 0, "auto_unroll_max_step$512"]],
    ]


@pytest.fixture
def corpus() -> Any:
    """What the features need of a corpus: its tasks."""
    return SimpleNamespace(tasks={n: Task(n, n, "other", 1.0, json.dumps(key)) for n, key in KEYS.items()})


def test_the_columns_are_where_the_layout_says(corpus: Any, tmp_path: Path) -> None:
    (rows,), failures = statement_features(corpus, [program("relu", threads(32, 2))], tmp_path)
    assert failures == {}
    assert rows.shape == (1, PERSTORE_WIDTH)
    assert rows.dtype == np.float32
    amounts = {BLOCKS: 4, THREADS: 32, VIRTUAL: 2, ITERATIONS: 256, UNROLL: 512}
    assert {column: round(2 ** float(rows[0, column])) - 1 for column in amounts} == amounts
    assert rows[0, IS_GPU] == 1


def test_a_program_that_fails_is_reported_and_the_others_are_made(corpus: Any, tmp_path: Path) -> None:
    cut_short = replace(program("relu", threads(4)), trace="[")
    bad = [program("relu", [["XX", 1]]), program("relu", [], framework="halide"), cut_short]
    rows, failures = statement_features(corpus, [program("relu", threads(8)), *bad], tmp_path)
    assert [len(f) for f in rows] == [1, 0, 0, 0]
    assert [failures[index].reason for index in (1, 2, 3)] == ["unknown-step", "unknown-framework", "wrong-shape"]


def test_features_are_made_once_whoever_asks(corpus: Any, tmp_path: Path) -> None:
    programs = [program("relu", threads(n)) for n in (4, 8, 16)] + [program("relu", [["XX", 1]])]
    counts: list[tuple[int, int]] = []
    some, more = [*programs[:2], programs[3]], [*programs, programs[0]]
    first, failures = statement_features(corpus, some, tmp_path, count=lambda _, *n: counts.append(n))
    again, same = statement_features(corpus, more, tmp_path, count=lambda _, *n: counts.append(n))
    assert counts == [(3, 3), (1, 1)], "what is done, of what has to be done"
    assert [f.reason for f in failures.values()] == [f.reason for f in same.values()] == ["unknown-step"]
    assert all(np.array_equal(a, b) for a, b in zip(first[:2], again[:2], strict=True))
    assert np.array_equal(again[0], again[4])
    assert (tmp_path / STORE_FILE).is_file()


def test_several_processes_make_what_one_makes(corpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "_FRESH", (get_context("fork"),))  # which has TVM imported
    programs = [program("relu", threads(n, v)) for n in (1, 2, 4, 8, 16, 32) for v in (1, 2, 4, 8)] * 2
    programs += [program("matmul", [["SP", 2, 1, 24, [n], 1]], "llvm") for n in range(1, 13)]
    one, _ = statement_features(corpus, programs, tmp_path / "one")
    two, failures = statement_features(corpus, programs, tmp_path / "two", workers=2)
    assert failures == {}
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


arrays = st.integers(0, 14).map(lambda n: np.random.default_rng(n).random((n, PERSTORE_WIDTH), np.float32))


@given(st.lists(st.tuples(arrays, st.integers(0, len(OPS) - 1)), max_size=6), st.integers(1, 12))
def test_matrices_keep_statements_in_order_with_their_operator(programs: list[Any], rows: int) -> None:
    matrices = statement_matrices([p for p, _ in programs], [op for _, op in programs], rows)
    assert matrices.shape == (len(programs), rows, STATEMENT_WIDTH)
    for matrix, (rows_of, op) in zip(matrices, programs, strict=True):
        kept = min(rows, len(rows_of))
        assert not matrix[kept:].any()
        assert (matrix[:kept, PERSTORE_WIDTH:] == np.eye(len(OPS))[op]).all()
        busiest = np.sort(np.sort(rows_of[:, ITERATIONS])[len(rows_of) - kept :])
        assert np.array_equal(np.sort(matrix[:kept, ITERATIONS]), busiest)
        places = [int(np.flatnonzero((rows_of == row).all(1))[0]) for row in matrix[:kept, :PERSTORE_WIDTH]]
        assert places == sorted(places)
