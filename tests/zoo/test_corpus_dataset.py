"""From a corpus to arrays: failed programs and tiny tasks stay out, equal sequences stay in."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tchub.zoo.corpus import Corpus, EmptyDatasetError, Program, Task, to_dataset, usable_programs, write_corpus
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema

META = {"device": "toy", "family": "epyc", "target": {"kind": "llvm"}, "tvm_version": "0.27.0", "licence": "CC0-1.0"}


def make_trace(outer: int, inner: int) -> str:
    """A loop of 64 split in three."""
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1"]],
        ["SamplePerfectTile", ["l1"], [3, 64], ["v2", "v3", "v4"]],
        ["Split", ["l1", "v2", "v3", "v4"], [1, 1], ["l5", "l6", "l7"]],
        ["EnterPostproc", [], [], []],
    ]
    return json.dumps([instructions, [[2, [outer, 64 // outer // inner, inner]]]])


def make_program(task_id: str, key: str, latency: float | None, trace: str) -> Program:
    times = (latency,) if latency else ()
    error = None if latency else "run_timeout"
    return Program(task_id, key, trace, "random", times, latency or math.nan, "toy", "{}", error)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    networks = {"a": (("resnet-50", 3), ("resnet-18", 9)), "b": (("resnet-18", 2),), "c": ()}
    tasks = [Task(t * 16, f"task-{t}", "matmul", 1.0, t, networks=networks[t]) for t in "abc"]
    programs = [make_program("a" * 16, f"k{i}", 1e-3 * (i + 1), make_trace(2**i, 2)) for i in range(5)]
    programs.append(make_program("a" * 16, "k5", None, make_trace(1, 1)))
    programs += [make_program("b" * 16, f"k{i}", 2e-3 * (4 - i), make_trace(4, 4)) for i in range(4)]
    programs += [make_program("c" * 16, f"k{i}", 1e-3, make_trace(1, 2**i)) for i in range(3)]
    return write_corpus(tmp_path / "corpus", META, tasks, programs)


def test_failed_programs_and_tasks_with_few_valid_ones_are_left_out_and_counted(corpus: Corpus):
    usable = usable_programs(corpus, corpus.tasks)
    assert {t[0]: len(p) for t, p in usable.programs.items()} == {"a": 5, "b": 4}
    assert usable.failed == 1
    assert usable.dropped == ("c" * 16,)


def test_the_arrays_fit_together(corpus: Corpus):
    schema, device = get_schema("tcl-cpu"), get_device("epyc")
    data = to_dataset(corpus, corpus.tasks, schema, device)
    assert data.features.shape == (9, 26, 22)
    assert data.features.dtype == np.float32
    np.testing.assert_array_equal(data.features[:, -1], np.tile(device.hardware_row(22), (9, 1)))
    assert data.group.tolist() == [0] * 5 + [1] * 4
    assert data.task_ids == ("a" * 16, "b" * 16)
    assert data.task_weights.tolist() == [3, 2], "occurrences in held-out networks, else in all"
    np.testing.assert_allclose(data.latency[:5], 1e-3 * np.arange(1, 6))
    np.testing.assert_allclose(data.labels[:5], 1 / np.arange(1, 6))


def test_programs_with_equal_sequences_stay(corpus: Corpus):
    data = to_dataset(corpus, ["b" * 16], get_schema("tlp-cpu"), None)
    assert len(data) == 4
    assert (data.features == data.features[0]).all()
    assert len(set(data.latency)) == 4


def test_different_programs_differ(corpus: Corpus):
    data = to_dataset(corpus, ["a" * 16], get_schema("tlp-cpu"), None)
    assert len(np.unique(data.features.reshape(5, -1), axis=0)) == 5


def test_the_order_of_the_tasks_is_the_callers(corpus: Corpus):
    data = to_dataset(corpus, ["b" * 16, "a" * 16], get_schema("tlp-cpu"), None)
    assert data.task_ids == ("b" * 16, "a" * 16)
    assert data.group.tolist() == [0] * 4 + [1] * 5


def test_nothing_to_rank_is_an_error(corpus: Corpus):
    with pytest.raises(EmptyDatasetError, match="4 valid programs") as caught:
        to_dataset(corpus, ["c" * 16], get_schema("tcl-cpu"), get_device("epyc"))
    assert caught.value.remedy
