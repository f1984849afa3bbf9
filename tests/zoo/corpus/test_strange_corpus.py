"""A corpus of a stranger: its hashes hold, but its values are none that a program can have."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_kit import META, make_program, make_task
from tchub.zoo.corpus import Corpus, CorpusError, check_corpus, usable_programs, write_corpus
from tchub.zoo.corpus.schema import PROGRAMS_FILE, TASKS_FILE


def altered(folder: Path, name: str, column: str, value: Any) -> Path:
    """A corpus in which a column has one value, and no hash says so."""
    trace = json.dumps([[["GetSBlock", [], ["C", "main"], ["b0"]], ["ComputeInline", ["b0"], [], []]], []])
    corpus = write_corpus(folder, META, [make_task()], [make_program(f"k{i}", trace=trace) for i in range(5)])
    table = pq.read_table(folder / name)
    field = pa.field(column, table.schema.field(column).type)
    values = pa.array([value] * len(table), field.type)
    pq.write_table(table.set_column(table.column_names.index(column), field, values), folder / name)
    (folder / "corpus.json").write_text(json.dumps({k: v for k, v in corpus.meta.items() if k != "files"}))
    return folder


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0, 0.0, 1e308])
@pytest.mark.parametrize("column", ["latency", "latencies"])
def test_a_latency_that_no_program_has_is_refused_wherever_it_is_read(tmp_path: Path, column: str, number: float):
    corpus = Corpus.open(
        altered(tmp_path / "c", PROGRAMS_FILE, column, [number] * 2 if column == "latencies" else number)
    )
    for read in (check_corpus, lambda one: usable_programs(one, one.tasks)):
        with pytest.raises(CorpusError, match=f"{tmp_path}.*task 00.*latency") as caught:
            read(corpus)
        assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        *[(PROGRAMS_FILE, column, "gremlin") for column in ("error", "strategy", "framework")],
        (TASKS_FILE, "op", "teleport"),
        (TASKS_FILE, "networks", [{"network": "resnet-18", "weight": -2}]),
    ],
)
def test_any_other_value_out_of_range_is_refused(tmp_path: Path, name: str, column: str, value: Any):
    with pytest.raises(CorpusError, match=r"gremlin|teleport|impossible"):
        check_corpus(Corpus.open(altered(tmp_path / "c", name, column, value)))


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        (PROGRAMS_FILE, "trace", None),
        (TASKS_FILE, "name", None),
        (TASKS_FILE, "networks", [None]),
        (TASKS_FILE, "networks", [{"network": "resnet-18", "weight": None}]),
    ],
)
def test_a_value_that_is_missing_is_refused(tmp_path: Path, name: str, column: str, value: Any):
    with pytest.raises(CorpusError, match=f"lacks values of the column {column}") as caught:
        check_corpus(Corpus.open(altered(tmp_path / "c", name, column, value)))
    assert caught.value.remedy


def test_a_damaged_table_is_a_typed_error(tmp_path: Path):
    file = altered(tmp_path / "c", PROGRAMS_FILE, "licence", "MIT") / PROGRAMS_FILE
    data = bytearray(file.read_bytes())
    data[4:200] = bytes(196)  # its first pages
    file.write_bytes(data)
    with pytest.raises(CorpusError, match="cannot be read"):
        check_corpus(Corpus.open(file.parent))


@pytest.mark.parametrize("trace", ["", "{", "[[], 3]", "[" * 10_000, '[[["Teleport", [], [], []]], []]', "null"])
def test_check_reads_every_trace(tmp_path: Path, trace: str):
    found = {f.name: f for f in check_corpus(Corpus.open(altered(tmp_path / "c", PROGRAMS_FILE, "trace", trace)))[1]}
    assert not found["readable programs"].ok
    assert "5 cannot be read: k0 of task 00" in found["readable programs"].message


@pytest.mark.parametrize("facts", [{"device": "../../evil"}, {"family": "/evil"}, {"files": {"../../evil": {}}}])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, facts: dict[str, Any]):
    folder = altered(tmp_path / "c", PROGRAMS_FILE, "licence", "MIT")
    meta = json.loads((folder / "corpus.json").read_text())
    (folder / "corpus.json").write_text(json.dumps(meta | facts))
    with pytest.raises(CorpusError, match=r"corpus\.json cannot be read"):
        Corpus.open(folder)
