"""A session on a lent card, whose commands are not run, and figures of compiling for cards."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tchub.hub.cli import main

from scripts import gpu_session
from scripts.benchmarks.gpu_compile import _row, summarise


def test_a_session_runs_to_its_end_and_the_next_call_does_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command is checked for options that `tchub` does not have; a small one runs in a process of its own."""
    in_a_process = gpu_session.do_step
    run = {"trials": 4, "failed": 0, "tuning_seconds": 1.0, "model": "tcl-t4", "sum_of_tasks": 1e-3}

    def do_step(command: list[str], environment: dict[str, str], *rest: Any) -> tuple[int | None, str, str]:
        assert command[:3] == [sys.executable, "-m", "tchub.hub.cli"]
        if command[3] == "doctor":
            return in_a_process([*command[:3], "devices", "--json"], environment, *rest)
        code = main([*command[3:], "--help"])
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir(parents=True)
        report = {"latency": {"tuned": 1e-3}, "runs": {"tuned": run | {"curve": []}}}
        (folder / "report.json").write_text(json.dumps(report))
        return code, json.dumps({"out": folder.name}), capsys.readouterr().err

    monkeypatch.setattr(gpu_session, "do_step", do_step)
    small = ["--networks", "tiny.pt2", "--checkpoint", "tcl-t4", "--precisions", "float32,float16"]
    command = [gpu_session.__file__, "run", *small, "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [*command, "--work", str(tmp_path / "work")])
    assert gpu_session.main() == 0
    journal = tmp_path / "out" / "journal.jsonl"
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    steps = ("doctor", "adapt", "tune-tiny", "tune-tiny-float16", "collect", "collect-float16")
    failed = [row["last_words"] for row in rows if row["code"]]
    assert [(row["step"], row["code"]) for row in rows] == [(step, 0) for step in steps], failed
    assert len(rows[0]["figures"]) > 9, "each device"
    assert rows[1]["figures"] == {"out": "adapt"}
    assert (rows[3]["figures"]["latency"], rows[3]["figures"]["runs"]) == ({"tuned": 1e-3}, {"tuned": run})
    # Another machine goes on with the state alone.
    shutil.rmtree(tmp_path / "work")
    other, state = ["--work", str(tmp_path / "other")], ["--state", str(tmp_path / "out" / "state.tar.xz")]
    done = subprocess.run([sys.executable, *command, *other, *state], check=True, capture_output=True, text=True)
    assert done.stdout == "all steps are done\n"
    assert [json.loads(line) for line in journal.read_text().splitlines()] == rows
    assert (tmp_path / "other" / "corpus-float16").is_dir()


def test_what_is_packed_is_unpacked_from_its_parts_beside_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, noise = subprocess.run, Random(0).randbytes(3 << 19)

    def installed(command: list[str], **options: Any) -> Any:
        """As pip does: a package that no part can hold."""
        if "pip" not in command:
            return run(command, **options)
        site = Path(command[command.index("--target") + 1])
        for name in ("one", "tvm/3rdparty"):
            (site / name).mkdir(parents=True)
        (site / "one" / "__init__.py").write_text("VALUE = 1\n")
        (site / "one" / "noise.bin").write_bytes(noise)
        return (site / "tvm" / "3rdparty" / "cutlass.h").write_text("// of no use there")

    monkeypatch.setattr(subprocess, "run", installed)
    parts = gpu_session.pack(tmp_path / "packed", 1)
    monkeypatch.undo()
    assert [part.stat().st_size <= 1 << 20 for part in parts] == [True, True]
    for _ in range(2):
        gpu_session.unpack(tmp_path / "packed", site := tmp_path / "site")
    assert (site / "one" / "noise.bin").read_bytes() == noise
    assert not (site / "tvm" / "3rdparty").exists()
    code = "import one, tchub.zoo.errors, importlib.metadata as m; print(one.VALUE, m.version('tchub'))"
    answer = subprocess.check_output([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(site)})
    assert answer == b"1 0.1.0\n"


def test_rates_count_what_compiles_and_the_share_is_of_all_programs() -> None:
    kind = {"operator": "dense-square", "precision": "float16"}
    shares = [
        kind | _row(2.0, [None, None, "build: a\nnvcc failed: x"]) | {"arch": "sm_75", "keys": ["a", "b", "c"]},
        kind | _row(1.0, [None]) | {"arch": "sm_80", "keys": ["a"]},
    ]
    assert shares[0]["failures"] == {"nvcc failed: x": 1}
    outcomes = [
        *(("ours", 1.0, [None] * 8), ("ours", 1.0, [None] * 2)),
        *(("stock", 2.0, [None, "x"]), ("stock", 1.0, [None] * 2)),
    ]
    rates = [{"system": system} | _row(seconds, errors) for system, seconds, errors in outcomes]
    summary = summarise(shares, rates)
    assert (summary["candidates"], summary["programs"], summary["compiled_share"]) == (3, 4, 0.75)
    assert summary["stock_compiled_share"] == 0.75
    assert (summary["ours_rate"], summary["stock_rate"], summary["rate_ratio"]) == pytest.approx((4.0, 1.0, 4.0))
