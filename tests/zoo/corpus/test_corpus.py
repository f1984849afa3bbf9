"""A corpus folder: written whole, merged without loss, opened with suspicion of values that no program can have."""

import json
import math
import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_kit import META, make_program, make_task
from tchub.zoo.corpus import Corpus, CorpusError, check_corpus, merge_corpus, sequence_of, usable_programs, write_corpus
from tchub.zoo.corpus.schema import PROGRAMS_FILE, TASKS_FILE
from tchub.zoo.files import StorageError
from tchub.zoo.primitives import Primitive, PrimitiveSequence


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    tasks = [make_task(), make_task("11" * 8, "softmax", (("bert-tiny", 4), ("gpt2-48", 12)))]
    programs = [make_program(f"k{i}", latency=1e-3 * (i + 1)) for i in range(5)]
    programs += [make_program(f"k{i}", "11" * 8, latency=None if i == 0 else 2e-3) for i in range(6)]
    return write_corpus(tmp_path / "corpus", META, tasks, programs)


def rewrite_meta(folder: Path, *without: str, **facts: Any) -> None:
    """Change `corpus.json`; a corpus of another writer has no `files`, so that any table passes."""
    meta = json.loads((folder / "corpus.json").read_text()) | facts
    (folder / "corpus.json").write_text(json.dumps({name: fact for name, fact in meta.items() if name not in without}))


def test_what_is_written_is_read_back(corpus: Corpus):
    again = Corpus.open(corpus.path)
    assert again.tasks["11" * 8] == make_task("11" * 8, "softmax", (("bert-tiny", 4), ("gpt2-48", 12)))
    assert again.programs("00" * 8)[1] == make_program("k1", latency=2e-3)
    failed = again.programs("11" * 8)[0]
    assert (failed.error, failed.latencies, failed.valid) == ("build", (), False)
    assert math.isnan(failed.latency)
    assert again.meta["programs"] == 11
    assert again.meta["tasks"] == 2
    assert again.networks == ("bert-tiny", "gpt2-48", "resnet-18")


def test_a_text_that_counts_in_every_row_does_not_fill_the_memory(corpus: Corpus, monkeypatch: pytest.MonkeyPatch):
    """A dictionary of one text of 0.5 MB makes a table of 0.5 GB of a file of some KB."""
    file = corpus.path / PROGRAMS_FILE
    rows = pq.read_table(file).slice(0, 1).take(pa.array([0] * 1_000))
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000), pa.array(["x" * 500_000]))
    rows = rows.set_column(rows.column_names.index("trace"), "trace", texts)
    pq.write_table(rows, file, store_schema=False)
    assert file.stat().st_size < 100_000
    rewrite_meta(corpus.path, "files")
    monkeypatch.setattr("tchub.zoo.corpus.corpus._LARGEST_TABLE", 150 << 20)
    before = pa.total_allocated_bytes()
    with pytest.raises(CorpusError, match="over 150 MiB"):
        Corpus.open(corpus.path).programs("00" * 8)
    assert pa.default_memory_pool().max_memory() - before < 1 << 30


def test_programs_of_another_device_are_refused(corpus: Corpus):
    with pytest.raises(CorpusError, match="cpu_model") as caught:
        merge_corpus(corpus.path, META | {"cpu_model": "Another"}, [], [])
    assert "folder of their own" in caught.value.remedy


@pytest.mark.parametrize(
    ("meta", "task", "programs", "message"),
    [
        ({"licence": ""}, {}, [], "licence"),
        ({}, {"op": "teleport"}, [], "operator type"),
        ({}, {}, [make_program("a", "22" * 8)], "which the corpus lacks"),
        ({}, {}, [make_program("a", error="gremlin")], "gremlin"),
        ({}, {}, [make_program("a", latency=None, error=None)], "the latency nan"),
        ({}, {}, [make_program("a", latency=-1.0)], "the latency -1.0"),
    ],
)
def test_a_record_that_is_not_valid_is_refused(tmp_path: Path, meta, task, programs, message):
    with pytest.raises(CorpusError, match=message):
        write_corpus(tmp_path / "c", META | meta, [make_task(**task)], programs)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("number", [1, 3])
def test_another_format_is_refused_before_the_programs_are_read(corpus: Corpus, number: int):
    rewrite_meta(corpus.path, format=number)
    (corpus.path / "programs.parquet").unlink()
    with pytest.raises(CorpusError, match=f"format {number}") as caught:
        Corpus.open(corpus.path)
    assert "upgrade" in caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "[" * 10_000, '{"format": "one"}', '{"format": 0}', '{"device": "x"}'),
        *('{"format": 2, "files": 3}', '{"format": 2, "files": {"tasks.parquet": 3}}'),
        '{"format": 2, "files": {"tasks.parquet": {"bytes": 3, "sha256": "../../etc/passwd"}}}',
    ],
)
def test_a_broken_corpus_json_is_an_error(corpus: Corpus, text: str):
    (corpus.path / "corpus.json").write_text(text)
    with pytest.raises(CorpusError):
        Corpus.open(corpus.path)


@pytest.mark.parametrize("name", ["tasks.parquet", "programs.parquet"])
def test_a_missing_or_truncated_file_is_an_error(corpus: Corpus, name: str):
    file = corpus.path / name
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CorpusError, match="bytes"):
        Corpus.open(corpus.path)
    file.unlink()
    with pytest.raises(CorpusError, match="bytes"):
        Corpus.open(corpus.path)


def test_a_column_that_may_be_null_may_be_missing_and_no_other(corpus: Corpus):
    file = corpus.path / "programs.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["primitives", "licence"]), file)
    rewrite_meta(corpus.path, "files")
    assert Corpus.open(corpus.path).programs("00" * 8) == corpus.programs("00" * 8)
    assert corpus.table("00" * 8, ["licence", "key"]).column_names == ["task_id", "key", "licence"]
    pq.write_table(pq.read_table(file).drop_columns(["trace"]), file)
    with pytest.raises(CorpusError, match="trace"):
        Corpus.open(corpus.path)


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_any_layout_of_rows_and_groups_reads_alike(corpus: Corpus, rows: int):
    """Several groups a task, several tasks a group, with the statistics of another writer or none."""
    file, before = corpus.path / "programs.parquet", list(map(repr, corpus.iter_programs()))
    table = pq.read_table(file).sort_by([("key", "ascending")] if rows == 100 else "task_id")
    pq.write_table(table, file, row_group_size=rows, write_statistics=rows != 4)
    rewrite_meta(corpus.path, "files")
    assert list(map(repr, Corpus.open(corpus.path).iter_programs())) == before


def test_a_sequence_comes_from_the_primitives_or_from_the_trace():
    steps = PrimitiveSequence((Primitive("Split", (0, 0, 64, 8, 3)),), "ansor")
    assert sequence_of(make_program("a", primitives=steps.to_json())) == steps
    trace = [[["GetSBlock", [], ["C", "main"], ["b0"]], ["ComputeInline", ["b0"], [], []]], []]
    assert [p.kind for p in sequence_of(make_program("a", trace=json.dumps(trace)))] == ["ComputeInline"]


def test_a_full_disk_leaves_the_old_corpus(corpus: Corpus, full_disk: Any):
    before = sorted(corpus.path.iterdir())
    full_disk("tchub.zoo.corpus.writer.file_sha256")
    with pytest.raises(StorageError, match="No space left"):
        merge_corpus(corpus.path, META, [], [make_program("k9")])
    assert sorted(corpus.path.iterdir()) == before, "no temporary file is left"
    assert len(list(Corpus.open(corpus.path).iter_programs())) == 11


@pytest.mark.parametrize("renames", range(1, 6))
def test_a_writer_killed_between_two_renames_leaves_the_whole_old_corpus_or_the_whole_new_one(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, renames: int
):
    class Killed(BaseException):
        pass

    done, rename = count(1), os.replace

    def replace_and_die(*paths: Path) -> None:
        rename(*paths)
        if next(done) == renames:
            raise Killed

    monkeypatch.setattr(os, "replace", replace_and_die)
    with pytest.raises(Killed):
        merge_corpus(corpus.path, META, [], [make_program("k9")])
    monkeypatch.undo()
    found = Corpus.open(corpus.path)
    assert len(list(found.iter_programs())) == found.meta["programs"] == (11 if renames < 3 else 12)
    assert check_corpus(found)[1][0].ok, "the hashes hold"
    assert merge_corpus(corpus.path, META, [], [make_program("k9")]).meta["programs"] == 12


def test_stats_count_what_is_there(corpus: Corpus):
    stats, _ = check_corpus(corpus)
    assert (stats["tasks"], stats["programs"], stats["valid_programs"]) == (2, 11, 10)
    assert stats["failed"] == {"build": 1}
    assert stats["programs_per_task"] == {"min": 5, "median": 5.5, "max": 6}
    assert stats["split"] == {"train": 1, "val": 0, "test": 1}
    assert stats["noise_median"] == pytest.approx(0.1 / 1.05)
    json.dumps(stats)


def test_check_passes_a_good_corpus_and_names_what_is_wrong(corpus: Corpus):
    assert [f for f in check_corpus(corpus)[1] if not f.ok] == []
    twin = make_task("22" * 8, networks=(("resnet-18", 1),))
    twin = replace(twin, workload=corpus.tasks["11" * 8].workload)
    programs = [make_program("x", device="other"), *(make_program(f"f{i}", latency=None) for i in range(20))]
    bad = write_corpus(corpus.path, META, [*corpus.tasks.values(), twin], [*corpus.iter_programs(), *programs])
    failed = {f.name: f.message for f in check_corpus(bad)[1] if not f.ok}
    assert set(failed) == {"no test task in training", "one id a computation", "failed share", "one device"}
    assert "most often build" in failed["failed share"]
    assert "2 of device" in failed["one device"]


def test_check_finds_a_file_whose_hash_differs(corpus: Corpus):
    files = json.loads((corpus.path / "corpus.json").read_text())["files"]
    files["programs.parquet"]["sha256"] = "0" * 64
    rewrite_meta(corpus.path, files=files)
    finding = check_corpus(Corpus.open(corpus.path))[1][0]
    assert not finding.ok
    assert "programs.parquet" in finding.message


def altered(folder: Path, name: str, column: str, value: Any) -> Path:
    """A corpus in which a column has one value, and no hash says so."""
    trace = json.dumps([[["GetSBlock", [], ["C", "main"], ["b0"]], ["ComputeInline", ["b0"], [], []]], []])
    write_corpus(folder, META, [make_task()], [make_program(f"k{i}", trace=trace) for i in range(5)])
    table = pq.read_table(folder / name)
    field = pa.field(column, table.schema.field(column).type)
    values = pa.array([value] * len(table), field.type)
    pq.write_table(table.set_column(table.column_names.index(column), field, values), folder / name)
    rewrite_meta(folder, "files")
    return folder


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0, 0.0, 1e308])
@pytest.mark.parametrize("column", ["latency", "latencies"])
def test_a_latency_that_no_program_has_is_refused_wherever_it_is_read(tmp_path: Path, column: str, number: float):
    value = [number] * 2 if column == "latencies" else number
    corpus = Corpus.open(altered(tmp_path / "c", PROGRAMS_FILE, column, value))
    for read in (check_corpus, lambda one: usable_programs(one, one.tasks)):
        with pytest.raises(CorpusError, match=f"{tmp_path}.*task 00.*latency") as caught:
            read(corpus)
        assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        *[(PROGRAMS_FILE, column, "gremlin") for column in ("error", "strategy", "framework")],
        (TASKS_FILE, "op", "teleport"),
        *[(TASKS_FILE, "networks", [{"network": "resnet-18", "weight": weight}]) for weight in (-2, None)],
        *[(PROGRAMS_FILE, "trace", None), (TASKS_FILE, "name", None), (TASKS_FILE, "networks", [None])],
    ],
)
def test_any_other_value_that_is_missing_or_out_of_range_is_refused(tmp_path: Path, name: str, column: str, value: Any):
    problem = rf"gremlin|teleport|impossible|lacks values of the column {column}"
    with pytest.raises(CorpusError, match=problem) as caught:
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


@pytest.mark.parametrize(
    "facts",
    [
        *({"device": "../../evil"}, {"family": "/evil"}, {"files": {"../../evil": {}}}),
        *({"split": split} for split in ("half", [], {"train": "all"}, {"train": ["a"], "test": [3]})),
        *({name: {}} for name in ("licence", "source", "cpu_model", "created", "tvm_version")),
        *({"framework": "tvm"}, {"target": 3}, {"threads": 0}, {"device_sheet": []}),
    ],
)
def test_a_name_that_leads_out_of_the_folder_or_a_fact_of_another_type_is_refused(corpus: Corpus, facts: Any):
    rewrite_meta(corpus.path, **facts)
    with pytest.raises(CorpusError, match=r"corpus\.json cannot be read"):
        Corpus.open(corpus.path)
