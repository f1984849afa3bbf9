"""How a benchmark's document was made: command, journal, processes, and the rows of the benchmark of coverage."""

import json
import os
import sqlite3
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import click
import pytest
from tchub.hub.tuning import builds
from tvm.target import Target

from scripts.benchmarks import packaged
from scripts.benchmarks.common import Journal, in_process, repeatable
from scripts.benchmarks.coverage import networks
from scripts.benchmarks.coverage import run as bench


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


def row(name: str, status: str = "passed", **facts: Any) -> dict[str, Any]:
    """A row of the journal; a network that does not pass has an error."""
    common = {"name": name, "family": "decoders", "status": status, "checked": True, "process_seconds": 20.0}
    if status == "passed":
        return common | facts
    return common | {"error": "TVM has no such operator"} | facts


def test_counts_by_status_and_family() -> None:
    rows = [
        row("gpt2"),
        row("unet", family="images"),
        row("gan.onnx", family="images", checked=False),
        row("fnet", "refused_before_measuring"),
        row("swin", "failed_after_measuring"),
        row("dpt", "traceback"),
    ]
    summary = bench.summarise(rows)
    counts = ("networks", "passed", "refused_before_measuring", "failed", "tracebacks", "output_unchecked")
    assert [summary[name] for name in counts] == [6, 3, 1, 1, 1, 1]
    assert summary["passed_by_family"] == {"decoders": [1, 4], "images": [2, 2]}
    assert list(summary["not_passed"]) == ["fnet", "swin", "dpt"]


def test_a_run_that_was_killed_goes_on_with_what_its_journal_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def run_network(name: str, *_: Any) -> dict[str, Any]:
        done.append(name)
        return row(name)

    monkeypatch.setattr(bench, "run_network", run_network)
    assert [r["name"] for r in bench.all_rows(["a", "b"], tmp_path, False)] == ["a", "b"]
    assert [r["name"] for r in bench.all_rows(["a", "b", "c"], tmp_path, False)] == ["a", "b", "c"]
    assert done == ["a", "b", "c"]


def test_a_child_that_ends_without_a_row_is_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forking = get_context("fork")  # which has PyTorch imported
    monkeypatch.setattr("multiprocessing.get_context", lambda _: forking)
    row = bench.run_network("no-such-network", tmp_path, False)
    assert row["status"] == "traceback"
    assert row["error"] == f"row_of: KeyError: 'no-such-network' (see {tmp_path}/networks/no-such-network/log.txt)"


@pytest.mark.parametrize(("lines", "status"), [(0, "refused_before_measuring"), (3, "failed_after_measuring")])
def test_an_error_of_tchub_is_a_refusal_unless_programs_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, status: str
) -> None:
    from tchub.hub.networks.errors import NetworkImportError

    def tuned(*_: Any) -> dict[str, Any]:
        (tmp_path / "out").mkdir()
        with sqlite3.connect(tmp_path / "out" / "records.sqlite") as store:
            store.execute("CREATE TABLE programs (key TEXT)")
            store.executemany("INSERT INTO programs VALUES (?)", [("key",)] * lines)
        raise NetworkImportError("TVM cannot import x", remedy="leave it out", operator="foo.default")

    monkeypatch.setattr(bench, "tuned", tuned)
    row = bench.row_of("perceptron", tmp_path, False)
    expected = (status, "foo.default", "TVM cannot import x", "module")
    assert (row["status"], row["operator"], row["error"], row["brought"]) == expected
    json.dumps(row)


@pytest.mark.parametrize("name", networks.SAMPLE)
def test_a_network_as_it_is_brought_compiles_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared_here: None, name: str
) -> None:
    first_build = builds.first_build

    def unoptimised(network: Any, target: Any, *rest: Any, **ways: Any) -> Any:
        """LLVM takes half the time so, for the same graph and kernels."""
        return first_build(network, Target(dict(target.export()) | {"opt-level": 0}), *rest, **ways)

    monkeypatch.setattr(builds, "first_build", unoptimised)
    source, arguments = networks.networks()[name].bring(tmp_path)
    checks = bench.compiled(source, arguments, name)["output_check"]
    assert {check["verdict"] for check in checks.values()} == {"equal"}
    # One library for each size that a dynamic shape is asked for.
    assert len(checks) == (2 if name == "perceptron-batch.pt2" else 1)
