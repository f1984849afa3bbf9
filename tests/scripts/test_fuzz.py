"""Every reader of foreign files, fed with a hundred damaged and hostile ones."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock, patch

import click
import pytest
from tchub.zoo.errors import TchubError

from scripts.benchmarks.common import Clock, write_text
from scripts.fuzz import __main__ as fuzzer
from scripts.fuzz.limits import limited_memory, limited_time
from scripts.fuzz.one import run
from scripts.fuzz.targets import TARGETS, Target

KEPT = sorted(path for path in (Path(__file__).parent.parent / "fuzz_inputs").rglob("*") if path.is_file())
INPUTS = {"card": 40, "metaschedule": 60}  # the slow ones


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_ends_in_anything_but_a_typed_error(name: str, tmp_path: Path) -> None:
    result = run(TARGETS[name], INPUTS.get(name, 150), seed=1, folder=tmp_path)
    assert not result.crashes
    assert not result.hangs
    assert result.accepted, "not even the real files are taken: the fuzzer feeds something else"
    assert result.refused, "nothing is refused: the fuzzer damages nothing"


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_once_was_a_crash_is_none_any_more(path: Path) -> None:
    target = TARGETS[path.parent.name]
    with limited_memory(1 << 30), limited_time(30), suppress(TchubError):
        target.run(path.read_bytes())


def of(run_one: object) -> Target:
    return Target("toy", "json", lambda: [b'{"a": [1, 2]}'], run_one)  # type: ignore[arg-type]


def test_the_fuzzer_sees_a_crash_and_keeps_its_input(tmp_path: Path) -> None:
    def brittle(data: bytes) -> None:
        if b"null" in data:
            raise KeyError("null")

    (name,) = run(of(brittle), 200, seed=0, folder=tmp_path).crashes.values()
    assert b"null" in (tmp_path / name).read_bytes()


def test_the_fuzzer_sees_a_hang(tmp_path: Path) -> None:
    def endless(data: bytes) -> None:
        while b"null" in data:
            pass

    assert run(replace(of(endless), seconds=0.05), 100, seed=0, folder=tmp_path).hangs


def test_the_fuzzer_sees_an_error_without_a_remedy(tmp_path: Path) -> None:
    curt = Mock(side_effect=TchubError("no"))
    assert "TchubError without a remedy" in run(of(curt), 3, seed=0, folder=tmp_path).crashes


def test_a_target_that_dies_at_once_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzer, "KEPT", tmp_path)
    monkeypatch.setattr(fuzzer, "in_process", Mock(side_effect=click.ClickException("killed")))
    (tmp_path / "lock").mkdir()
    for name in ("number", "current"):  # of an earlier run
        (tmp_path / "lock" / name).write_text("7")
    assert list(fuzzer.fuzz("lock", 0, 100, 102)["crashes"]) == ["at 100: killed", "at 101: killed"]


def test_inputs_that_the_answer_counts_are_not_run_again(tmp_path: Path) -> None:
    part = Mock(side_effect=lambda name, _, first, end: fuzzer.together(name, [clean | {"inputs": end - first}]))
    clean = {"inputs": 7, "accepted": 0, "refused": {}, "slowest_ms": 1.0, "seconds": 1.0, "crashes": {}, "hangs": {}}
    rows = [clean | {"target": "lock"}, clean | {"target": "keys", "crashes": {"KeyError": "x"}}]
    write_text(tmp_path / "docs/benchmarks/fuzz.json", json.dumps({"seeds": [0], "details": {"targets": rows}}))
    command: Any = fuzzer.main.callback
    with patch.multiple(fuzzer, ROOT=tmp_path, KEPT=tmp_path / "kept", fuzz=part, sys=MagicMock()):
        _, details, _ = command.__wrapped__(("lock", "keys"), 10, 0, Clock())
    assert [call.args for call in part.call_args_list] == [("keys", 0, 0, 10), ("lock", 0, 7, 10)]
    assert [row["inputs"] for row in details["targets"]] == [10, 10]
