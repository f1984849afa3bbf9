"""`tchub corpus import --replay`: an old log becomes a database that MetaSchedule opens and applies."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

MATMUL = ["matmul_layer", 8, 16, 12]
RELU = ["relu_layer", 4, 6]


def record(key: list[Any], steps: list[Any], cost: float = 1e-3, error: int = 0) -> str:
    task = [json.dumps(key), "llvm -keys=cpu", [2, 64, 64, 0, 0, 0, 0, 0], "", 0, []]
    return json.dumps({"i": [task, [[], steps]], "r": [[cost], error, 1.5, 1637922689], "v": "v0.6"})


def matmul(width: int, cost: float) -> str:
    steps = [["SP", 2, 1, 12, [width], 1], ["RE", 2, [0, 1, 3, 2]], ["AN", 2, 3, 2], ["AN", 2, 0, 3]]
    return record(MATMUL, steps, cost)


@pytest.fixture
def replayed(tmp_path: Path, run: Any) -> Callable[..., tuple[dict[str, Any], list[Any]]]:
    """Replays a log; returns what the command prints, and the database's records.

    In the log are three programs that replay, an inlined output, a task that nobody knows, a failed program and a
    broken line.
    """
    lines = [
        *(matmul(4, 2e-3), matmul(6, 3e-3)),
        record(RELU, [["FU", 1, [0, 1]], ["AN", 1, 0, 3]]),
        record(RELU, [["CI", 1]]),
        record(["13da82b16db5a9fde8953f4c5667d2e4"], [["FU", 1, [0, 1]]]),
        record(MATMUL, [["AN", 2, 0, 3]], 1e10, 4),
        "{not json",
    ]
    (log := tmp_path / "ansor.log").write_text("\n".join(lines) + "\n")

    def replay(*options: str) -> tuple[dict[str, Any], list[Any]]:
        code, summary = run.json("corpus", "import", "--replay", log, "--out", tmp_path / "db", *options)
        assert code == 0
        return summary, list(ms.database.JSONDatabase(work_dir=str(tmp_path / "db")).get_all_tuning_records())

    return replay


def test_every_program_is_replayed_or_counted_and_todays_tvm_applies_the_database(replayed: Any) -> None:
    summary, records = replayed()
    assert summary["operators"]["matmul"] == {"replayed": 2, "of": 2}
    assert summary["operators"]["elementwise"] == {"replayed": 1, "of": 2}
    assert {row["reason"]: row["programs"] for row in summary["reasons"]} == {"refused": 1, "unknown-workload": 1}
    assert (summary["untimed"], summary["broken"]) == (1, {"not-json": 1})
    assert summary["share"] == pytest.approx(3 / 5)
    products = [r for r in records if "matmul" in str(r.workload.mod)]
    assert sorted(float(r.run_secs[0]) for r in products) == [2e-3, 3e-3]
    rng = np.random.default_rng(0)
    a, b = rng.random((8, 16), np.float32), rng.random((16, 12), np.float32)
    for kept in products:
        assert str(kept.target.kind) == "llvm"
        schedule = Schedule(kept.workload.mod)
        kept.trace.apply_to_schedule(schedule, remove_postproc=False)
        tensors = [tvm.runtime.tensor(x) for x in (a, b, np.zeros((8, 12), np.float32))]
        tvm.compile(schedule.mod, target=tvm.target.Target("llvm"))["main"](*tensors)
        np.testing.assert_allclose(tensors[2].numpy(), a @ b, rtol=1e-5)


def test_a_limit_takes_the_first_programs_of_each_task_for_any_target(replayed: Any) -> None:
    target = '{"kind": "llvm", "mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"}'
    summary, records = replayed("--per-task", "1", "--target", target)
    assert {str(r.target.attrs["mcpu"]) for r in records} == {"cortex-a72"}
    assert summary["operators"]["matmul"] == {"replayed": 1, "of": 1}
    assert summary["over_limit"] == 2
    assert {float(r.run_secs[0]) for r in records} == {2e-3, 1e-3}
