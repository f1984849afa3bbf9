"""Measuring on the device: only TVM's runtime is there, programs may crash, and the run may be killed."""

import json
import signal
import subprocess
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from bundle_kit import CRASH, GOOD, HANG, Machine, bare_machine, lines_of, toy_bundle
from tchub.hub.bundle.build import copy_runtime


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    folder = tmp_path_factory.mktemp("machine")
    copy_runtime(folder / "runtime")
    return bare_machine(folder / "site", "--runtime", str(folder / "runtime"))


def begun(machine: Machine, bundle: Path, results: Path, lines: int) -> subprocess.Popen[str]:
    """Start a run, and return it once it has written so many lines."""
    command = machine.command(bundle, results)
    process = subprocess.Popen(command, env=machine.environment, stderr=subprocess.PIPE, text=True)
    while not results.exists() or results.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, "it ended before it could be stopped"
        time.sleep(0.001)
    return process


def test_programs_run_on_the_runtime_alone(machine: Machine, tmp_path: Path) -> None:
    first, second = machine.measure(toy_bundle(tmp_path, [GOOD, GOOD]), tmp_path / "results.jsonl")
    assert first["error"] is None
    assert 3 <= len(first["latencies"]) <= 4
    (_, before), (_, after) = first["fingerprint"]
    assert after == pytest.approx(2 * before, rel=1e-6), "the kernel got its arguments, and its output was read"
    assert first["fingerprint"] == second["fingerprint"], "programs of one task run on equal inputs"
    (facts,) = lines_of(tmp_path / "results.jsonl", "machine")
    assert facts["cpu_model"]


def test_an_unpacked_bundle_runs_as_well_as_a_zipped_one(machine: Machine, tmp_path: Path) -> None:
    bundle = toy_bundle(tmp_path, [GOOD])
    zipfile.ZipFile(bundle).extractall(tmp_path / "unpacked")
    machine.measure(tmp_path / "unpacked" / "run.py", tmp_path / "results.jsonl")
    again = machine.run(bundle, tmp_path / "results.jsonl")
    assert "all 1 programs have results" in again.stderr, "both are the same bundle"


def test_a_program_that_crashes_or_hangs_costs_only_itself(machine: Machine, tmp_path: Path) -> None:
    bundle = toy_bundle(tmp_path, [GOOD, CRASH, HANG, GOOD])
    lines = machine.measure(bundle, tmp_path / "results.jsonl", "--time-limit", "3")
    assert [line["error"] for line in lines] == [None, "crash", "run_timeout", None]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_hangs_ends_with_its_run(machine: Machine, tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM ends a run as Ctrl-C does: nothing is left behind."""
    (temporary := tmp_path / "temporary").mkdir()
    own = replace(machine, environment=machine.environment | {"TMPDIR": str(temporary)})
    process = begun(own, toy_bundle(tmp_path, [GOOD, HANG]), tmp_path / "results.jsonl", 2)
    workers = psutil.Process(process.pid).children()
    assert workers
    process.send_signal(number)
    _, shown = process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    if number == signal.SIGTERM:
        assert process.returncode == 130
        assert shown.endswith("interrupted: run the same command again to go on\n")
        assert not list(temporary.iterdir())


def test_a_killed_run_goes_on_and_measures_nothing_twice(machine: Machine, tmp_path: Path) -> None:
    bundle, results = toy_bundle(tmp_path, [GOOD] * 12), tmp_path / "results.jsonl"
    process = begun(machine, bundle, results, 3)
    process.kill()
    process.wait()
    with results.open("ab") as file:
        file.write(b'{"kind": "program", "id"')  # as a kill in the midst of a write leaves it
    whole = [json.loads(line) for line in results.read_bytes().splitlines()[:-1]]
    paid = [line["id"] for line in whole if line["kind"] == "program"]
    numbers = [line["id"] for line in machine.measure(bundle, results)]
    assert numbers[: len(paid)] == paid
    assert sorted(numbers) == list(range(12))


def test_a_run_can_be_cut_into_pieces(machine: Machine, tmp_path: Path) -> None:
    bundle, results = toy_bundle(tmp_path, [GOOD] * 3), tmp_path / "results.jsonl"
    lines = machine.measure(bundle, results, "--limit", "2", "--repeats", "1")
    assert [len(line["latencies"]) for line in lines] == [1, 1]
    assert "1 left" in machine.run(bundle, results, "--seconds", "0").stderr


@pytest.mark.parametrize("name", ["programs/00000.so", "origin.json", "onsite/worker.py"])
def test_a_changed_file_is_refused_before_anything_runs(machine: Machine, tmp_path: Path, name: str) -> None:
    bundle = toy_bundle(tmp_path, [GOOD])
    with zipfile.ZipFile(bundle) as source, zipfile.ZipFile(tmp_path / "changed.zip", "w") as copy:
        for item in source.namelist():
            data = source.read(item)
            copy.writestr(item, data + b"\n" if item == name else data)
    done = machine.run(tmp_path / "changed.zip", tmp_path / "results.jsonl")
    assert done.returncode == 2
    assert f"{name} was changed" in done.stderr
    assert not (tmp_path / "results.jsonl").exists()


def test_results_of_another_bundle_are_not_added_to(machine: Machine, tmp_path: Path) -> None:
    machine.run(toy_bundle(tmp_path / "a", [GOOD]), tmp_path / "results.jsonl")
    before = (tmp_path / "results.jsonl").read_bytes()
    done = machine.run(toy_bundle(tmp_path / "b", [GOOD, GOOD]), tmp_path / "results.jsonl")
    assert done.returncode == 2
    assert "another bundle" in done.stderr
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_a_machine_without_the_runtime_is_told_what_is_missing(tmp_path: Path) -> None:
    done = bare_machine(tmp_path / "site").run(toy_bundle(tmp_path, [GOOD]), tmp_path / "results.jsonl")
    assert done.returncode == 3
    assert "libtvm_ffi.so" in done.stderr
    assert "--runtime" in done.stderr


def test_where_nothing_runs_the_run_stops_early_and_tries_again_once_the_machine_is_mended(
    machine: Machine, tmp_path: Path
) -> None:
    fickle = 'extern char *getenv(const char *); if (getenv("BROKEN")) return 1'
    bundle, results = toy_bundle(tmp_path, [fickle] * 26), tmp_path / "results.jsonl"
    machine.run(bundle, results, "--limit", "1")
    before = results.read_bytes()
    broken = Machine(machine.environment | {"BROKEN": "1"}, machine.options)
    done = broken.run(bundle, results)
    assert done.returncode == 4
    assert "the first 24 programs all failed" in done.stderr
    assert results.read_bytes() == before
    mended = machine.measure(bundle, results)
    assert [(line["id"], line["error"]) for line in mended] == [(number, None) for number in range(26)]
    kept = broken.measure(bundle, tmp_path / "kept.jsonl", "--keep-failures")
    assert [line["error"] for line in kept] == ["run"] * 26
