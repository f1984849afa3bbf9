"""What a benchmark's document says of how it was made."""

import os
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import click
import pytest

from scripts.benchmarks import packaged
from scripts.benchmarks.common import Journal, in_process, repeatable


@pytest.mark.parametrize(
    ("name", "arguments", "command"),
    [
        ("x", ["--seeds", "0,1", "--json"], "python -m scripts.benchmarks x --seeds 0,1 --json"),
        ("fuzz", ["--minutes", "0.01", "--seed", "2"], "python -m scripts.fuzz --seed 2"),
        ("x", ["--only", "a b", "--minutes", "5"], "python -m scripts.benchmarks x --only 'a b'"),
        ("x", ["--work", "/mnt/x", "--json"], "python -m scripts.benchmarks x --json"),
    ],
)
def test_the_command_beside_a_figure_makes_it_again(name: str, arguments: list[str], command: str) -> None:
    """A time limit says where a run was cut, and another machine would be cut elsewhere."""
    assert repeatable(name, arguments) == command


def test_what_a_journal_holds_is_not_made_again_and_a_line_that_was_cut_short_is(tmp_path: Path) -> None:
    journal, calls = Journal(tmp_path / "work" / "journal.jsonl"), []

    def make() -> dict[str, int]:
        calls.append(1)
        return {"value": len(calls)}

    assert journal.get(make, name="a", seed=0) == journal.get(make, name="a", seed=0)
    assert journal.get(make, name="a", seed=1)["value"] == 2
    with journal.path.open("a") as file:
        file.write('{"name": "b", "seed": 0, "val')
    assert journal.get(make, name="b", seed=0)["value"] == 3
    assert [row["value"] for row in journal.rows()] == [1, 2, 3]


def test_a_function_runs_in_a_process_of_its_own_whose_end_without_a_result_is_told(tmp_path: Path) -> None:
    assert in_process(os.getpid) != os.getpid()
    log = tmp_path / "logs" / "one"
    in_process(print, "a line", log=log)
    assert log.read_text() == "a line\n"
    for function, argument in ((os._exit, 3), (int, "x")):
        with pytest.raises(click.ClickException, match="see"):
            in_process(function, argument, log=log)


def test_a_packaged_network_is_fetched_once_and_one_that_is_refused_is_a_row_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, fetched = packaged.NETWORKS["file-types"], []

    def download(command: list[str], **_: Any) -> None:
        fetched.append(command[-1])
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir(parents=True)
        with ZipFile(folder / "some.whl", "w") as wheel:
            wheel.writestr(file.path, b"no model")

    monkeypatch.setattr(packaged.subprocess, "run", download)
    rows = [packaged.tried("file-types", threads, tmp_path) for threads in (1, 2)]
    assert [row["reason"] for row in rows] == [rows[0]["reason"]] * 2
    assert "model.onnx is no ONNX file" in rows[0]["reason"]
    assert fetched == [file.package]
