"""The benchmark of coverage: children that crash, refusals, and its sample."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tchub.hub.networks import latency, rivals

from scripts.benchmarks.coverage import networks
from scripts.benchmarks.coverage import run as bench


def test_a_child_that_ends_without_a_row_is_a_traceback(tmp_path: Path) -> None:
    found = bench.run_network("no-such-network", tmp_path, False)
    assert found["status"] == "traceback"
    assert found["error"] == f"row_of: KeyError: 'no-such-network' (see {tmp_path}/networks/no-such-network/log.txt)"


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
    found = bench.row_of("perceptron", tmp_path, False)
    expected = (status, "foo.default", "TVM cannot import x", "module")
    assert (found["status"], found["operator"], found["error"], found["brought"]) == expected
    json.dumps(found)


@pytest.mark.parametrize("name", networks.SAMPLE)
def test_a_network_as_it_is_brought_compiles_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # The process that runs the library starts in four seconds; these libraries are no danger to this one.
    monkeypatch.setattr(latency, "_ask", lambda request, *_: rivals.answer(request))
    source, arguments = networks.networks()[name].bring(tmp_path)
    checks = bench.compiled(source, arguments, name)["output_check"]
    assert {check["verdict"] for check in checks.values()} == {"equal"}
    # One library for each size that a dynamic shape is asked for.
    assert len(checks) == (2 if name == "perceptron-batch.pt2" else 1)
