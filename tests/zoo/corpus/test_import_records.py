"""Packed logs that unpack to more than anybody has: importers take them line by line, and a line in pieces."""

import lzma
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from tchub.zoo.corpus.importers.records import LONGEST_LINE, BadLine, ImportContext
from tchub.zoo.corpus.importers.run import read_entries
from tchub.zoo.corpus.schema import CorpusError

from scripts.fuzz.limits import limited
from scripts.fuzz.seeds import files


@pytest.mark.parametrize(("framework", "end"), [("ansor", "xz"), ("autotvm", "xz"), ("ansor", "zst")])
def test_a_log_that_unpacks_to_far_more_than_it_is_ends_there(tmp_path: Path, framework: str, end: str) -> None:
    log = tmp_path / f"log.json.{end}"
    good = files("ansor")[0]
    if end == "xz":  # streams one after the other: the piece is packed once
        first, piece, last = (lzma.compress(text, preset=0) for text in (good, b"[" * LONGEST_LINE, b"\n" + good))
        log.write_bytes(first + 20 * piece + last)
    else:
        with pa.output_stream(log, compression="zstd") as file:
            file.write(good)
            for _ in range(20):
                file.write(b"[" * LONGEST_LINE)
            file.write(b"\n" + good)
    assert log.stat().st_size < 1 << 20
    with limited(256 << 20, 60):
        entries = list(read_entries(log, framework, ImportContext("v100")))
    kinds = Counter(entry.kind if isinstance(entry, BadLine) else "taken" for entry in entries)
    assert 4 <= kinds["wrong-shape"] < 10, "pieces of the line"
    assert (kinds["not-readable"], kinds["taken"]) == (1, 1 if framework == "ansor" else 0)


@pytest.mark.parametrize("name", ["tasks.json.xz", "workload_tvmscript.json.xz"])
def test_a_file_beside_a_database_that_unpacks_to_more_than_any_has_is_refused(tmp_path: Path, name: str) -> None:
    put_database(tmp_path)
    (tmp_path / name).write_bytes(20 * lzma.compress(b" " * LONGEST_LINE, preset=0))
    with limited(256 << 20, 60), pytest.raises(CorpusError, match=f"{name}.*characters"):
        list(read_entries(tmp_path, "metaschedule", ImportContext("v100")))


@pytest.mark.parametrize("name", ["tasks.json.xz", "workload_tvmscript.json.xz", "database_workload.json.zst"])
@pytest.mark.parametrize(
    "content",
    [b"hello", lzma.compress(b"[1]" * 1000)[:40], pa.compress(b"[1]" * 1000, "zstd", asbytes=True)[:15]],
    ids=["not packed", "cut short", "zstd cut short"],
)
def test_a_damaged_file_of_a_database_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    put_database(tmp_path)
    (tmp_path / name.rpartition(".")[0]).unlink(missing_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=f"{name} cannot be read"):
        list(read_entries(tmp_path, "metaschedule", ImportContext("v100")))


def put_database(folder: Path) -> None:
    for name in ("database_workload.json", "database_tuning_record.json"):
        (folder / name).write_bytes(b"")
