"""Collecting: a corpus of real measurements that grows, resumes, and pays for nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tchub.hub.device.errors import MeasurementFailureRateError
from tchub.hub.device.measure import Measurement, Measurer
from tchub.hub.device.meta_schedule import make_builder_runner
from tchub.hub.records.journal import Journal
from tchub.hub.tuning.collect import CollectProgress, _Collector, collect
from tchub.zoo.corpus import Corpus

OPERATOR = "batch-matmul-scores"


class Stopped(Exception):
    """Stands for a kill."""


def test_a_stopped_collection_goes_on_where_it_was(tmp_path: Path) -> None:
    paid: list[CollectProgress] = []

    def stop_at_four(progress: CollectProgress) -> None:
        paid.append(progress)
        if len(paid) == 4:
            raise Stopped

    with pytest.raises(Stopped):
        collect(OPERATOR, 12, tmp_path, progress=stop_at_four)
    again: list[CollectProgress] = []
    result = collect(OPERATOR, 12, tmp_path, progress=again.append)
    assert again[0].done == 5, "the four programs that were paid for are still there"
    assert {p.phase for p in again} == {"random", "evolutionary"}
    corpus = Corpus.open(tmp_path)
    assert corpus.meta["programs"] == result.programs == 4 + len(again)
    assert corpus.meta["device_sheet"]["name"] == corpus.meta["device"]
    (task,) = corpus.tasks.values()
    assert (task.op, task.networks) == ("batch_matmul", ((OPERATOR, 1),))
    assert all(p.valid and len(p.latencies) >= 1 for p in corpus.iter_programs())

    # The search may find fewer new programs than asked for; a further run tops up, and measures none again.
    before = {program.key: program.measured_at for program in corpus.iter_programs()}
    assert result.programs <= collect(OPERATOR, 12, tmp_path).programs <= 12
    after = {program.key: program.measured_at for program in Corpus.open(tmp_path).iter_programs()}
    assert before.items() <= after.items()


def test_sigterm_ends_a_command_that_measures_as_ctrl_c_does(tmp_path: Path) -> None:
    (temporary := tmp_path / "temporary").mkdir()
    program = """if True:
        import os, signal, sys
        from tchub.hub import cli
        from tchub.hub.device.measure import Measurer
        from tchub.hub.tuning import collect as module

        def collect(*_, **__):
            with Measurer({"kind": "llvm"}) as measurer:
                open("while", "w").write(str(os.listdir(os.environ["TMPDIR"])))
                os.kill(os.getpid(), signal.SIGTERM)

        module.collect = collect
        sys.exit(cli.main(["collect", "--out", "out"]))
    """
    command, environment = [sys.executable, "-c", program], os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stderr.strip() == "interrupted; run the same command again to go on"
    assert "tchub-measure-" in (tmp_path / "while").read_text()
    assert not list(temporary.glob("tchub-*")), "the workers' folder went"


def test_when_nothing_can_be_built_the_run_stops_and_the_journal_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers = tmp_path / "bin"
    compilers.mkdir()
    for name in ("g++", "gcc", "cc", "c++", "ld", "clang++"):
        (compilers / name).write_text("#!/bin/sh\necho no space left >&2\nexit 1\n")
        (compilers / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(compilers))
    with pytest.raises(MeasurementFailureRateError, match="failed") as caught:
        collect(OPERATOR, 60, tmp_path / "out")
    assert "build" in str(caught.value.fields["commonest"])
    assert (tmp_path / "out" / "journal.sqlite").exists()


def test_programs_that_a_full_disk_failed_are_tried_again(
    tmp_path: Path, small_task: Any, target: Any, small_candidates: list[Any]
) -> None:
    with Journal(tmp_path / "journal.sqlite", {"device": "here"}) as journal:
        told = ("OSError: [Errno 28] No space left on device", "LLVM has no such intrinsic")
        for number, candidate in enumerate(small_candidates[:6]):
            journal.put(candidate, Measurement((), "build", told[number % 2], 0.1, 0.0))
        collector = _Collector(journal, FakeMeasurer(), target, 12, 0, lambda _: None, lambda _: None, 12)
        assert {entry.measurement.message for entry in collector._known(small_task)} == {told[1]}
        again = {candidate.key for candidate in collector._random([small_task])}
        assert again & {candidate.key for candidate in small_candidates[:6:2]}


def test_failures_of_a_machine_where_all_fails_are_forgotten(tmp_path: Path, small_task: Any, target: Any) -> None:
    with Journal(tmp_path / "journal.sqlite", {"device": "here"}) as journal:
        collector = _Collector(journal, FakeMeasurer(), target, 12, 0, lambda _: None, lambda _: None, 12)
        with pytest.raises(MeasurementFailureRateError):
            collector.run([small_task])
        assert len(journal) == 0


class FakeMeasurer(Measurer):
    """A machine on which the third program is one too many."""

    def __init__(self) -> None:
        self.overlaps = True

    def know(self, task_id: str, latency: float) -> None:
        raise AssertionError

    def measure(self, candidates: Any) -> Any:
        for number, candidate in enumerate(candidates):
            yield candidate, Measurement((), "build", "no compiler", 0.1, 0.0)
            if number == 2:
                raise MeasurementFailureRateError("3 of 3 programs failed", remedy="run `tchub doctor`")


def test_stock_metaschedule_takes_the_workers(small_task: Any, target: Any, tmp_path: Path) -> None:
    from tvm.s_tir import meta_schedule as ms

    with make_builder_runner() as workers:
        database = ms.tune_tir(
            small_task.mod,
            target,
            str(tmp_path),
            4,
            num_trials_per_iter=4,
            builder=workers.builder,
            runner=workers.runner,
            cost_model="random",
            strategy=ms.search_strategy.ReplayTrace(),
            seed=1,
        )
    seconds = [float(s) for record in database.get_all_tuning_records() for s in record.run_secs]
    assert len(database) == 4
    assert all(0 < s < 1 for s in seconds)
    lines = (tmp_path / "database_tuning_record.json").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 4
