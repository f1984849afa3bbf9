"""Corpora larger than memory, and corpora of older formats."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import dataset
from tchub.zoo.corpus import (
    Corpus,
    CorpusError,
    CorpusWriter,
    Program,
    Task,
    iter_datasets,
    sequence_of,
    to_dataset,
    write_corpus,
)
from tchub.zoo.corpus.rows import Waiting
from tchub.zoo.corpus.seen import Seen
from tchub.zoo.corpus.writer import Taken
from tchub.zoo.features import get_schema
from tchub.zoo.primitives import Primitive, PrimitiveSequence

META = {"device": "toy", "family": "toy", "target": {"kind": "llvm"}, "tvm_version": "0.27.0", "licence": "MIT"}
FORMAT_1_LACKS = {"tasks.parquet": ["computation"], "programs.parquet": ["primitives", "licence", "source"]}


def task_of(letter: str) -> Task:
    return Task(letter * 16, letter, "matmul", 1.0, f"workload {letter}", f"matmul-{letter}", (("resnet-18", 1),))


def program_of(letter: str, number: int, latency: float = 1e-3) -> Program:
    told = PrimitiveSequence((Primitive("Split", (0, 0, 64, 8, number)),), "ansor").to_json()
    return Program(
        letter * 16, f"{number:04d}", "[]", "tuned", (latency,), latency, "toy", '"llvm"', framework="ansor",
        primitives=told, licence="MIT", source="a log", measured_at=1.7e9, cost_seconds=0.5,
    )  # fmt: skip


def as_format_1(corpus: Corpus) -> Corpus:
    """The same folder as an older version wrote it."""
    for name, columns in FORMAT_1_LACKS.items():
        pq.write_table(pq.read_table(corpus.path / name).drop_columns(columns), corpus.path / name)
    meta = {key: value for key, value in corpus.meta.items() if key != "files"} | {"format": 1}
    (corpus.path / "corpus.json").write_text(json.dumps(meta))
    return Corpus.open(corpus.path)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    programs = [program_of(letter, i, 1e-3 * (i + 1)) for letter in "abc" for i in range(6)]
    return write_corpus(tmp_path / "corpus", META, map(task_of, "abc"), programs)


def test_the_columns_of_format_2_are_read_back(corpus: Corpus):
    assert corpus.meta["format"] == 2
    assert corpus.tasks["a" * 16] == task_of("a")
    assert corpus.programs("b" * 16)[2] == program_of("b", 2, 3e-3)


def test_a_corpus_of_format_1_reads_with_empty_new_columns(corpus: Corpus):
    old = as_format_1(corpus)
    assert old.tasks["a" * 16] == replace(task_of("a"), computation="")
    assert old.programs("b" * 16)[2] == replace(program_of("b", 2, 3e-3), primitives=None, licence=None, source=None)
    assert old.table("a" * 16, ["licence", "key"]).column_names == ["task_id", "key", "licence"]


def test_format_2_may_not_lack_a_column(corpus: Corpus):
    old = as_format_1(corpus)
    (old.path / "corpus.json").write_text(json.dumps(old.meta | {"format": 2}))
    with pytest.raises(CorpusError, match="computation"):
        Corpus.open(old.path)


def test_a_sequence_comes_from_the_primitives_or_from_the_trace():
    program = program_of("a", 3)
    assert sequence_of(program).primitives[0].numbers == (0, 0, 64, 8, 3)
    trace = [[["GetSBlock", [], ["C", "main"], ["b0"]], ["ComputeInline", ["b0"], [], []]], []]
    told = sequence_of(replace(program, primitives=None, trace=json.dumps(trace), framework="metaschedule"))
    assert [p.kind for p in told] == ["ComputeInline"]


def test_interleaved_programs_are_grouped_by_task_and_repeated_ones_left_out(tmp_path: Path):
    with CorpusWriter(tmp_path / "c", META) as writer:
        for letter in "ab":
            writer.add_task(task_of(letter))
        taken = [writer.add(program_of(letter, i)) for i in (3, 1, 3, 2) for letter in "ba"]
    assert taken == [Taken.NEW] * 4 + [Taken.LEFT] * 2 + [Taken.NEW] * 2
    corpus = Corpus.open(tmp_path / "c")
    assert [p.key for p in corpus.programs("a" * 16)] == ["0001", "0002", "0003"]
    assert corpus.meta["programs"] == 6


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.booleans()), min_size=1, max_size=40))
def test_the_first_measurement_stays_and_a_failure_only_where_there_is_none(tmp_path_factory, log):
    """Of the same programs, in any order and with any of them waiting or on disk already."""
    folder, expected = tmp_path_factory.mktemp("corpus"), {}
    with pytest.MonkeyPatch.context() as patch, CorpusWriter(folder, META) as writer:
        patch.setattr(Waiting.__init__, "__defaults__", (3, 8000))
        for letter in "ab":
            writer.add_task(task_of(letter))
        for place, (letter, number, failed) in enumerate(log, 1):
            program = program_of(letter, number, 1e-3 * place)
            if failed:
                program = replace(program, latencies=(), latency=math.nan, error="run")
            writer.add(program)
            kept = expected.setdefault((letter * 16, program.key), program)
            if not kept.valid and program.valid:
                expected[letter * 16, program.key] = program
    found = Corpus.open(folder)
    programs = list(found.iter_programs())
    assert found.meta["programs"] == len(programs) == len(expected)
    for program in programs:
        kept = expected[program.task_id, program.key]
        assert (program.latencies, program.error) == (kept.latencies, kept.error)


def test_a_heavily_interleaved_log_gives_one_row_group_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Waiting.__init__, "__defaults__", (100, 8000))
    with CorpusWriter(tmp_path / "c", META) as writer:
        for letter in "abcdef":
            writer.add_task(task_of(letter))
        for i in range(40):
            for letter in "abcdef":
                writer.add(program_of(letter, 39 - i))
    file = pq.ParquetFile(tmp_path / "c" / "programs.parquet")
    assert file.num_row_groups == 6
    assert [p.key for p in Corpus.open(tmp_path / "c").programs("d" * 16)] == [f"{i:04d}" for i in range(40)]


def test_an_error_while_writing_leaves_nothing(tmp_path: Path):
    writer = CorpusWriter(tmp_path / "c", META)
    writer.add_task(task_of("a"))
    writer.add(program_of("a", 0))
    error = RuntimeError("the log ends here")
    writer.__exit__(RuntimeError, error, None)
    assert not (tmp_path / "c").exists()


def test_a_writer_that_was_killed_leaves_nothing_that_opens(tmp_path: Path):
    writer = CorpusWriter(tmp_path / "c", META)
    writer.add_task(task_of("a"))
    for i in range(9000):
        writer.add(program_of("a", i))
    assert list((tmp_path / "c").iterdir()), "a row group is on disk already"
    with pytest.raises(CorpusError, match="not a corpus"):
        Corpus.open(tmp_path / "c")


def test_a_discarded_task_is_not_written(tmp_path: Path):
    with CorpusWriter(tmp_path / "c", META) as writer:
        for letter in "ab":
            writer.add_task(task_of(letter))
            writer.add(program_of(letter, 0))
        writer.discard("a" * 16, 1)
    corpus = Corpus.open(tmp_path / "c")
    assert list(corpus.tasks) == ["b" * 16]
    assert corpus.meta["programs"] == 1


@given(st.lists(st.sampled_from("abc"), max_size=60), st.integers(1, 5), st.integers(1500, 20_000))
def test_what_waits_is_bounded_and_everything_is_handed_on_once(letters, rows, limit):
    groups: list[list[Program]] = []
    waiting = Waiting(groups.append, rows, limit)
    programs = [program_of(letter, i) for i, letter in enumerate(letters)]
    for i, program in enumerate(programs):
        waiting.add(program)
        assert (i + 1 - sum(map(len, groups))) * 1500 <= limit
    waiting.finish()
    assert all(len(group) <= rows and len({p.task_id for p in group}) == 1 for group in groups)
    assert sorted(p.key for group in groups for p in group) == [p.key for p in programs]


@given(st.lists(st.integers(0, 40)))
def test_seen_answers_like_a_set(numbers):
    seen, known = Seen(recent=4), set()
    for number in numbers:
        assert (("task", str(number)) in seen) is (number in known)
        assert seen.add("task", str(number)) is (number not in known)
        known.add(number)
    assert len(seen) == len(known)


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_any_size_of_row_groups_reads_alike(corpus: Corpus, rows: int):
    """Several groups a task, and several tasks a group, with the statistics of another writer or none."""
    file, before = corpus.path / "programs.parquet", list(corpus.iter_programs())
    pq.write_table(pq.read_table(file), file, row_group_size=rows, write_statistics=rows != 4)
    (corpus.path / "corpus.json").write_text(json.dumps({k: v for k, v in corpus.meta.items() if k != "files"}))
    again = Corpus.open(corpus.path)
    assert list(again.iter_programs()) == before
    assert len(again.table("b" * 16)) == 6


def test_chunks_hold_whole_tasks_and_together_the_whole_dataset(corpus: Corpus):
    schema = get_schema("tlp-cpu")
    whole = to_dataset(corpus, corpus.tasks, schema, None)
    chunks = list(iter_datasets(corpus, corpus.tasks, schema, None, chunk=7))
    assert [chunk.task_ids for chunk in chunks] == [("a" * 16, "b" * 16), ("c" * 16,)]
    np.testing.assert_array_equal(np.concatenate([chunk.features for chunk in chunks]), whole.features)
    np.testing.assert_array_equal(np.concatenate([chunk.labels for chunk in chunks]), whole.labels)


def test_other_readers_take_the_table_as_it_is(corpus: Corpus):
    table = dataset.dataset(corpus.path / "programs.parquet").to_table(filter=dataset.field("latency") < 2.5e-3)
    assert len(table) == 6
    assert set(table["framework"].to_pylist()) == {"ansor"}
    assert math.isclose(table["latency"][0].as_py(), 1e-3)
