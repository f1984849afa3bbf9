"""Collecting: a corpus of real measurements that grows, resumes, and pays for nothing twice."""

import importlib
import json
import os
import shlex
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.cli import main
from tchub.hub.device import measure
from tchub.hub.device.errors import MeasurementFailureRateError
from tchub.hub.device.measure import Measurement
from tchub.hub.device.pool import Zygote
from tchub.hub.networks import workloads
from tchub.hub.networks.alternatives import extract
from tchub.hub.networks.sources import open_network
from tchub.hub.records.store import FILE, home_file
from tchub.hub.search.errors import TuningError
from tchub.hub.tuning import collect as collecting
from tchub.hub.tuning.collect import Shard, collect
from tchub.zoo.corpus import Corpus, merge_corpora

OPERATOR = "pool-average-7x7"
IDS = st.lists(st.text("0123456789abcdef", min_size=16, max_size=16), min_size=1, max_size=40, unique=True)


class Stopped(Exception):
    """Stands for a kill."""


@pytest.mark.usefixtures("shared_zygote")
def test_a_stopped_collection_goes_on_where_it_was(tmp_path: Path) -> None:
    paid: list[tuple[Any, ...]] = []

    def stop_at_three(*progress: Any) -> None:
        paid.append(progress)
        if len(paid) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        collect(OPERATOR, 8, tmp_path, progress=stop_at_three)
    again: list[tuple[Any, ...]] = []
    result = collect(OPERATOR, 8, tmp_path, progress=lambda *progress: again.append(progress))
    assert again[0][1] == 4, "the three programs that were paid for are still there"
    assert {text.split()[0] for text, *_ in again} == {"random", "evolutionary"}
    corpus = Corpus.open(tmp_path)
    assert corpus.meta["programs"] == result.programs == 3 + len(again)
    assert corpus.meta["device_sheet"]["name"] == corpus.meta["device"]
    (task,) = corpus.tasks.values()
    assert (task.op, task.networks) == ("pool", ((OPERATOR, 1),))
    assert all(p.valid and len(p.latencies) >= 1 for p in corpus.iter_programs())

    # The search may find fewer new programs than asked for; a further run tops up, and measures none again.
    before = {program.key: program.measured_at for program in corpus.iter_programs()}
    assert result.programs <= collect(OPERATOR, 8, tmp_path).programs <= 8
    after = {program.key: program.measured_at for program in Corpus.open(tmp_path).iter_programs()}
    assert before.items() <= after.items()


@pytest.mark.usefixtures("shared_zygote")
def test_sigterm_ends_a_command_that_measures_as_ctrl_c_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: Callable[..., Any]
) -> None:
    (temporary := tmp_path / "temporary").mkdir()

    def killed(*_: Any, **__: Any) -> None:
        with measure.Measurer({"kind": "llvm"}):
            (tmp_path / "while").write_text(str(list(temporary.iterdir())))
            os.kill(os.getpid(), signal.SIGTERM)

    def command() -> None:
        sys.stderr = (tmp_path / "stderr").open("w")
        sys.exit(main(["collect", "--out", str(tmp_path / "out")]))

    monkeypatch.setattr("tchub.hub.tuning.collect.collect", killed)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    process = forked(command)
    process.join(60)
    error = (tmp_path / "stderr").read_text()
    assert process.exitcode == 130, error
    assert error.strip() == "interrupted; run the same command again to go on"
    assert "tchub-measure-" in (tmp_path / "while").read_text()
    assert not list(temporary.glob("tchub-*")), "the workers' folder went"


def test_when_nothing_can_be_built_the_run_stops_and_what_failed_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers = tmp_path / "bin"
    compilers.mkdir()
    for name in ("g++", "gcc", "cc", "c++", "ld", "clang++"):
        (compilers / name).write_text("#!/bin/sh\necho no space left >&2\nexit 1\n")
        (compilers / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(compilers))
    monkeypatch.setattr(measure, "Zygote", Zygote)  # whose workers find them
    monkeypatch.setattr("tchub.hub.device.errors.FAILURE_MINIMUM", 4)
    with pytest.raises(MeasurementFailureRateError, match="failed") as caught:
        collect(OPERATOR, 60, tmp_path / "out")
    assert "build" in str(caught.value.fields["commonest"])
    with closing(sqlite3.connect(tmp_path / "out" / FILE)) as store:
        assert store.execute("SELECT COUNT(*) FROM programs").fetchone() == (0,), "the machine failed, not the programs"


def tasks_of(ids: list[str]) -> list[Any]:
    return [SimpleNamespace(task_id=task_id) for task_id in ids]


@given(IDS, st.data())
def test_every_task_is_in_one_shard_and_the_order_of_extraction_does_not_matter(
    ids: list[str], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(ids)))
    parts = [[t.task_id for t in Shard(i + 1, count).of(tasks_of(ids))] for i in range(count)]
    assert sorted(t for part in parts for t in part) == sorted(ids)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    shuffled = data.draw(st.permutations(ids))
    assert {t.task_id for t in Shard(1, count).of(tasks_of(shuffled))} == set(parts[0])


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "a/b", "-1/4", "1/4/2"])
def test_what_names_no_shard_is_refused(text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["collect", "--shard", text, "--out", str(tmp_path), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"] == "TuningError"
    assert "3/8" in answer["remedy"]


def test_more_shards_than_tasks_is_an_error_before_anything_is_measured() -> None:
    with pytest.raises(TuningError, match="3 shards of 2 tasks") as caught:
        Shard(1, 3).of(tasks_of(["a", "b"]))
    assert "2 shards at most" in str(caught.value.remedy)


class _Clock:
    """Stands for the workers: a program's latency follows from its name."""

    overlaps = True

    def __init__(self, *_: object) -> None:
        self.outcomes = {"ok": 0}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def know(self, task_id: str, latency: float) -> None:
        pass

    def measure(self, candidates: Any) -> Iterator[tuple[Any, Measurement]]:
        for candidate in candidates:
            latency = 1e-6 * (1 + int(candidate.key[:4], 16))
            self.outcomes["ok"] += 1
            yield candidate, Measurement((latency,), None, None, 0.1, 0.1, 1.7e9)


def test_shards_merge_to_what_one_machine_collects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "Measurer", _Clock)
    # What evolves depends on the threads of the search as well; what is drawn at random, on the seed alone.
    monkeypatch.setattr(collecting._Collector, "_evolved", lambda *_: (one for one in ()))
    monkeypatch.setattr(workloads, "SUITES", {"tiny": ("batch-matmul-scores", "dense-tall")})
    collect("tiny", 16, tmp_path / "whole", seed=3)
    shared = home_file().read_bytes()
    results = [collect("tiny", 16, tmp_path / "cut", seed=3, shard=Shard(number, 2)) for number in (1, 2)]
    assert [Path(result.path).name for result in results] == ["shard-1-of-2", "shard-2-of-2"]
    assert home_file().read_bytes() == shared, "no two shards write to one file"
    merged = merge_corpora(tmp_path / "cut", [result.path for result in results]).corpus
    whole = Corpus.open(tmp_path / "whole")
    assert repr(merged.tasks) == repr(whole.tasks)
    assert list(map(repr, merged.iter_programs())) == list(map(repr, whole.iter_programs()))


def test_programs_of_tensor_cores_become_a_corpus(card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = open_network(torch.nn.Linear(64, 32).eval(), (torch.randn(32, 64),))
    monkeypatch.setattr(
        collecting, "tasks_of", lambda _, target, precision: extract(network, target, precision=precision)
    )
    result = collect("toy", 4, tmp_path, device="cuda", precision="float16")
    assert (result.failed, set(result.outcomes)) == (0, {"ok"})
    corpus = Corpus.open(tmp_path)
    command = shlex.split(corpus.meta["command"])
    assert command[:6] == ["tchub", "collect", "--device", "cuda:0", "--workload", "toy"]
    assert command[-6:] == ["--precision", "float16", "--seed", "0", "--out", "DIR"]
    assert "--threads" not in command, "which is an option of CPUs"
    assert any("wmma_sync_16x16x16_f16f16f32" in program.trace for program in corpus.iter_programs())
    assert main(["corpus", "check", str(tmp_path), "--quiet"]) == 0


TRIALS = 12


@pytest.fixture
def victim() -> Any:
    """`python -m scripts.kills.session`: a session of two tiny tasks, and what checks its folder."""
    return importlib.import_module("scripts.kills.session")


def test_a_tuner_killed_in_the_middle_resumes_and_loses_nothing(
    victim: Any, tmp_path: Path, forked: Callable[..., Any]
) -> None:
    process = forked(victim.tune, tmp_path, TRIALS, victim.Pretended())
    _wait_until(lambda: _lines(tmp_path / "seen.jsonl") >= 5)
    process.kill()
    process.join()
    with closing(sqlite3.connect(tmp_path / "records.sqlite")) as store:
        (paid,) = store.execute("SELECT COUNT(*) FROM programs").fetchone()
    assert 5 <= paid < TRIALS + 2, "killed before its end (two are untuned programs)"
    view = victim.tune(tmp_path, TRIALS, victim.Pretended())
    verdict = victim.check(tmp_path)
    assert view.done == verdict.trials == verdict.logged == TRIALS
    assert verdict.ok, verdict
    assert _lines(tmp_path / "seen.jsonl") <= TRIALS + 3, "only what was in hand at the kill is measured again"


@pytest.mark.usefixtures("shared_zygote")
def test_a_killed_worker_costs_the_program_in_hand_alone(victim: Any, tmp_path: Path) -> None:
    from tchub.hub.search.measuring import WorkerMeasure

    killed: list[int] = []

    def killing(measure: Any) -> Any:
        def one_by_one(jobs: Any) -> Iterator[Any]:
            for measured in measure(jobs):
                yield measured
                if not killed:
                    helpers = psutil.Process().children(recursive=True)
                    killed.extend(p.pid for p in helpers if p.ppid() != os.getpid())  # not their parent, the zygote
                    for pid in killed:
                        os.kill(pid, signal.SIGKILL)

        return one_by_one

    with victim.open_machine("workers") as measurer:
        view = victim.tune(tmp_path, TRIALS, killing(WorkerMeasure(measurer)))
    verdict = victim.check(tmp_path)
    assert killed
    assert view.done == verdict.trials == TRIALS
    assert verdict.ok, verdict
    assert verdict.failed <= len(killed)


def _wait_until(true: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
