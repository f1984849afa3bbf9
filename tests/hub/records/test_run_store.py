"""The store of measured programs: on disk at once, never paid twice, never mixed between devices."""

import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from tchub.hub.device.candidate import Candidate
from tchub.hub.device.measure import Measurement
from tchub.hub.records.scope import MeasurementScope
from tchub.hub.records.store import FILE, RunStateError, RunStore, home_file, open_store
from tchub.zoo.errors import TchubError
from tchub.zoo.files import StorageError

SCOPE = MeasurementScope("epyc-turin", "AMD EPYC", '{"kind":"llvm"}', 1, "0.27.0")
FACTS = {"network": "n", "target": "llvm", "model": "stock", "tasks": ["a"]}


def candidate(key: str, task: str = "t", strategy: str = "random") -> Candidate:
    return Candidate(task, key, "[[],[]]", strategy, None, (((2, 3), "float32"),))  # type: ignore[arg-type]


def good(seconds: float = 1e-3) -> Measurement:
    return Measurement((seconds, seconds * 1.01), None, None, 0.2, 0.1, 1.7e9)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore(tmp_path / FILE, SCOPE) as opened:
        yield opened


def test_a_program_comes_out_as_it_went_in(store: RunStore) -> None:
    store.put(candidate("a", strategy="tune"), good(), predicted=0.5, clock=2.5)
    with RunStore(store.path, SCOPE) as again:
        assert again.get("t", "a") == good()
        assert again.get("t", "b") is None
        (program,) = again.programs("t")
        (bare,) = again.programs(traces=False)
        assert len(again) == 1
    assert (program.key, program.trace, program.strategy) == ("a", "[[],[]]", "tune")
    assert (program.predicted, program.clock, program.args) == (0.5, 2.5, (((2, 3), "float32"),))
    assert program.latency == pytest.approx(1.005e-3)
    assert bare == replace(program, trace="")


def test_a_failure_never_replaces_a_success_and_a_success_replaces_a_failure(store: RunStore) -> None:
    failed = Measurement((), "run_timeout", "killed", measured_at=1.0)
    store.put(candidate("a"), failed)
    store.put(candidate("a"), good())
    store.put(candidate("a"), failed)
    assert store.get("t", "a") == good()
    store.forget_failure("t", "a")
    assert len(store) == 1, "a valid measurement is never forgotten"


@pytest.mark.parametrize("fact", asdict(SCOPE))
def test_another_scope_sees_nothing(store: RunStore, fact: str) -> None:
    store.put(candidate("a"), good())
    store.note("tasks", [1, 2])
    other = replace(SCOPE, **{fact: 2 if fact == "threads" else "another"})
    with RunStore(store.path, other) as opened:
        assert opened.get("t", "a") is opened.noted("tasks") is None
        assert len(opened) == 0
    assert store.noted("tasks") == [1, 2]


def test_a_target_is_what_it_means(target: Any, target_dict: dict[str, Any]) -> None:
    scope = MeasurementScope.of("epyc-turin", "AMD EPYC", target, 1)
    assert scope.key == MeasurementScope.of("epyc-turin", "AMD EPYC", target_dict, 1).key
    assert scope.key != MeasurementScope.of("epyc-turin", "AMD EPYC", "nvidia/nvidia-t4", 1).key
    assert scope.key != MeasurementScope.of("epyc-turin", "AMD EPYC", target, 1, weights=1 << 20).key


@pytest.mark.parametrize(
    ("times", "latency"), [((2.0, 1.0, 9.0), 2.0), ((1.0, 2.0), 1.5), ((), inf), ((0.0,), inf), ((1.0, inf), inf)]
)
def test_the_latency_is_the_median_of_times(store: RunStore, times: tuple[float, ...], latency: float) -> None:
    program = store.put(candidate("a"), Measurement(times))
    assert program.latency == latency
    assert program.failure == (None if latency < inf else "no valid time")


def test_known_programs_are_the_fastest_first_without_failures_of_the_moment(store: RunStore) -> None:
    for key, seconds in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        store.put(candidate(key), good(seconds))
    for number, message in enumerate(("OSError: [Errno 28] No space left on device", "the program divided by zero")):
        store.put(candidate(f"failed-{number}"), Measurement((), "build", message))
    store.put(candidate("timeout"), Measurement((), "run_timeout", "10 s"))
    assert [program.key for program in store.known("t")] == ["b", "c", "a", "failed-1"]
    assert store.ranking("t") == ["b", "c", "a"]


def test_the_fastest_of_each_task_are_of_one_device_and_of_any_network(store: RunStore) -> None:
    """Other weights between two runs change a latency, and seldom which schedule is good."""
    for key, seconds in (("slow", 2.0), ("fast", 1.0), ("untuned", 0.5)):
        store.put(candidate(key, strategy="untuned" if key == "untuned" else "tune"), good(seconds))
    store.put(candidate("failed", "other"), Measurement((), "build", "no"))
    others = {"weights": 1 << 26, "tvm_version": "0.26.0", "threads": 2, "device": "epyc-rome", "target": "cuda"}
    for name, value in others.items():
        with RunStore(store.path, replace(SCOPE, **{name: value})) as other:
            other.put(candidate(name, "other"), good())
    assert [program.key for program in store.fastest()] == ["fast", "weights", "tvm_version"]


def test_a_runs_programs_are_known_to_the_home(tmp_path: Path) -> None:
    with open_store(tmp_path / "run", SCOPE) as run:
        for strategy in ("tune", "untuned", "reused"):
            run.put(candidate(strategy, strategy=strategy), good())
    with open_store(tmp_path / "alone", SCOPE, share=False) as alone:
        alone.put(candidate("alone"), good())
    with RunStore(home_file(), SCOPE) as home:
        assert [program.key for program in home.known("t")] == ["tune"]


def test_a_folder_belongs_to_one_run(store: RunStore) -> None:
    assert store.claim(FACTS) is False
    assert store.claim(FACTS | {"settings": 1}) is True
    with RunStore(store.path, replace(SCOPE, threads=2)) as other:
        assert other.claim(FACTS) is True
    with pytest.raises(RunStateError, match="another model: stock"):
        store.claim(FACTS | {"model": "tcl-epyc@1.0.0"})
    with pytest.raises(RunStateError, match="holds an earlier run"):
        store.claim(FACTS, resume=False)
    store._write("UPDATE notes SET value = replace(value, '\"format\": 1', '\"format\": 99')")
    with pytest.raises(RunStateError, match="newer release"):
        store.claim(FACTS)


def test_a_killed_writer_loses_nothing_that_it_had_put(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_run_store import *
with RunStore(Path({str(tmp_path / FILE)!r}), SCOPE) as store:
    for i in range(10**6):
        store.put(candidate(str(i)), good())
        print(i, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        written = [int(process.stdout.readline()) for _ in range(25)]
        process.kill()
    with RunStore(tmp_path / FILE, SCOPE) as store:
        assert all(store.get("t", str(i)) == good() for i in written)


def test_a_full_disk_leaves_what_was_put_before(store: RunStore) -> None:
    """Writes past some size of a file fail, as they do on a full disk."""

    def fill() -> None:
        for number in range(1000):
            store.put(candidate(f"{number:016x}"), good())

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, before[1]))
    try:
        with pytest.raises(StorageError, match="cannot be used") as error:
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "same command" in str(error.value.remedy)
    assert 0 < (kept := len(store)) < 1000
    with RunStore(store.path, SCOPE) as again:
        assert len(again) == kept
        again.put(candidate("more"), good())
        assert len(again) == kept + 1, "once there is room, it goes on"


@pytest.mark.parametrize("path", [f"file/{FILE}", "file"], ids=["in a file", "another file"])
def test_a_path_that_cannot_be_written_is_a_typed_error(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("neither a folder nor a store" * 100)
    with pytest.raises(StorageError) as caught:
        RunStore(tmp_path / path, SCOPE)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE programs SET latencies = '[1'",
        "UPDATE programs SET latencies = '[[]]'",
        "UPDATE programs SET latencies = x'ff'",
        "UPDATE programs SET args = '[1]'",
        "UPDATE programs SET clock = 'x'",
        "UPDATE notes SET value = '[]'",
        "UPDATE notes SET value = '{}' WHERE scope = ''",
        "INSERT INTO workloads VALUES (x'00', 'module')",
        "DROP TABLE workloads; CREATE VIEW workloads AS SELECT 1 AS task_id, 2 AS module",
        "CREATE TRIGGER t BEFORE INSERT ON scopes BEGIN DELETE FROM programs; END",
        "ALTER TABLE programs RENAME COLUMN mean TO other",
    ],
)
def test_a_store_that_somebody_else_wrote_is_a_typed_error(store: RunStore, damage: str) -> None:
    store.claim(FACTS)
    store.put(candidate("a"), good())
    store.note("phases", {"search": 1.0})
    store.close()
    with closing(sqlite3.connect(store.path)) as db:
        db.executescript(damage)

    def go_on() -> None:
        with RunStore(store.path, SCOPE) as again:
            again.claim(FACTS)
            again.modules()
            again.noted("phases", dict[str, float])
            list(again.programs())

    with pytest.raises(TchubError, match=r"cannot be used|newer release") as caught:
        go_on()
    assert caught.value.remedy


def test_a_damaged_store_is_a_typed_error_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with RunStore(path, SCOPE) as store:
        for number in range(200):
            store.put(candidate(str(number)), good())
    data = bytearray(path.read_bytes())
    data[-5 * 4096 :] = b"\xff" * (5 * 4096)  # pages of measurements, as a failing disk leaves them
    path.write_bytes(data)
    with RunStore(path, SCOPE) as store:
        for read in (lambda: list(store.programs()), lambda: [store.get("t", str(n)) for n in range(200)]):
            with pytest.raises(StorageError, match="cannot be used"):
                read()
