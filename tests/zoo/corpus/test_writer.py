"""A corpus is written program by program, in bounded memory, whatever their order."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from corpus_kit import META, make_program, make_task
from hypothesis import given
from hypothesis import strategies as st
from tchub.zoo.corpus import Corpus, CorpusError, CorpusWriter, Program, Task, writer


def task_of(letter: str) -> Task:
    return make_task(letter * 16)


def program_of(letter: str, number: int, latency: float = 1e-3) -> Program:
    return make_program(f"{number:04d}", letter * 16, latency, framework="ansor", primitives="{}", licence="MIT")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.booleans()), min_size=1, max_size=40))
def test_the_first_measurement_stays_and_a_failure_only_where_there_is_none(tmp_path_factory, log):
    folder, expected = tmp_path_factory.mktemp("corpus"), {}
    with pytest.MonkeyPatch.context() as patch, CorpusWriter(folder, META) as written:
        patch.setattr(writer, "GROUP_ROWS", 3)
        for letter in "ab":
            written.add_task(task_of(letter))
        for place, (letter, number, failed) in enumerate(log, 1):
            program = program_of(letter, number, 1e-3 * place)
            if failed:
                program = replace(program, latencies=(), latency=math.nan, error="run")
            written.add(program)
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
    monkeypatch.setattr(writer, "GROUP_ROWS", 100)
    with CorpusWriter(tmp_path / "c", META) as written:
        for letter in "abcdef":
            written.add_task(task_of(letter))
        for i in range(40):
            for letter in "abcdef":
                written.add(program_of(letter, 39 - i))
    file = pq.ParquetFile(tmp_path / "c" / "programs.parquet")
    assert file.num_row_groups == 6
    assert [p.key for p in Corpus.open(tmp_path / "c").programs("d" * 16)] == [f"{i:04d}" for i in range(40)]


@pytest.mark.parametrize("killed", [False, True], ids=["an error", "a kill"])
def test_a_writer_that_did_not_finish_leaves_nothing_that_opens(tmp_path: Path, killed: bool):
    written = CorpusWriter(tmp_path / "c", META)
    written.add_task(task_of("a"))
    written.add(program_of("a", 0))
    if not killed:
        written.__exit__(RuntimeError, RuntimeError("the log ends here"), None)
    assert (tmp_path / "c").exists() == killed
    with pytest.raises(CorpusError, match="not a corpus"):
        Corpus.open(tmp_path / "c")
