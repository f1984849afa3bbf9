"""Small corpora for the tests of this folder."""

import json
import math
from typing import Any

from tchub.zoo.corpus import Program, Task

META = {
    "device": "test-cpu",
    "family": "epyc",
    "cpu_model": "Test CPU",
    "target": {"kind": "llvm", "num-cores": 1},
    "tvm_version": "0.27.0",
    "licence": "CC0-1.0",
    "command": "tchub collect",
}


def make_task(task_id: str = "00" * 8, op: str = "matmul", networks: Any = (("resnet-18", 2),)) -> Task:
    return Task(task_id, f"fused_{op}", op, 1e6, f'{{"workload": "{task_id}"}}', networks=networks)


def make_program(key: str, task_id: str = "00" * 8, latency: float | None = 1e-3, **more: Any) -> Program:
    columns: dict[str, Any] = {
        "latencies": (latency, latency * 1.1) if latency else (),
        "latency": latency or math.nan,
        "error": None if latency else "build",
        "error_message": None if latency else "no such loop",
        "device": "test-cpu",
        "target": json.dumps(META["target"]),
        "cpu_model": "Test CPU",
        "tvm_version": "0.27.0",
        "measured_at": 1.7e9,
        "cost_seconds": 0.5,
    }
    columns |= {"trace": "[[], []]", "strategy": "random"}
    return Program(task_id, key, **(columns | more))
