"""The columns of a corpus on disk, and its records in memory.

Format history (raise `FORMAT` when a reader of the old number would misread the new files, add the old
number's reader to `corpus.py`, and keep a corpus of the old format among the tests):

1. `corpus.json`, `tasks.parquet`, `programs.parquet` as below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

FORMAT = 1
META_FILE, TASKS_FILE, PROGRAMS_FILE = "corpus.json", "tasks.parquet", "programs.parquet"

OPS = (
    "conv2d",
    "depthwise",
    "matmul",
    "batch_matmul",
    "softmax",
    "pool",
    "norm",
    "reduce",
    "elementwise",
    "other",
)
ERROR_KINDS = ("build", "build_timeout", "run", "run_timeout", "crash", "invalid")
STRATEGIES = ("random", "evolutionary")
REQUIRED_META = ("device", "family", "target", "tvm_version", "licence")

TASKS_SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("flops", pa.float64(), nullable=False),
        pa.field("workload", pa.string(), nullable=False),
        pa.field("networks", pa.list_(pa.struct([("network", pa.string()), ("weight", pa.int64())]))),
    ]
)

PROGRAMS_SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("trace", pa.string(), nullable=False),
        pa.field("strategy", pa.string(), nullable=False),
        pa.field("latencies", pa.list_(pa.float64())),
        pa.field("latency", pa.float64()),
        pa.field("error", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("framework", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("cpu_model", pa.string()),
        pa.field("tvm_version", pa.string()),
        pa.field("measured_at", pa.float64()),
        pa.field("cost_seconds", pa.float64()),
    ]
)

# Columns whose few distinct values repeat on every row; the others (traces, keys, numbers) do not.
DICTIONARY_COLUMNS = [
    "task_id",
    "strategy",
    "error",
    "framework",
    "device",
    "target",
    "cpu_model",
    "tvm_version",
]


@dataclass(frozen=True, slots=True)
class Task:
    """One subgraph with its shapes.

    Attributes:
        task_id: 16 hex digits of the structural hash; equal ids are the same computation, whatever its name.
        name: a name for people, e.g. `fused_conv2d_add_relu`.
        op: operator type, one of `OPS`.
        flops: floating-point operations of one call.
        workload: `tvm.ir.save_json` of the TIR module.
        networks: (network, how many times it holds this task), one entry a network.
    """

    task_id: str
    name: str
    op: str
    flops: float
    workload: str
    networks: tuple[tuple[str, int], ...] = ()

    def weight(self, networks: tuple[str, ...] | None = None) -> int:
        """How many times the task occurs, in all networks or in the ones named."""
        return sum(count for name, count in self.networks if networks is None or name in networks)

    def as_row(self) -> dict[str, Any]:
        """The task as a row of `tasks.parquet`."""
        networks = [{"network": name, "weight": count} for name, count in self.networks]
        return {name: getattr(self, name) for name in TASKS_SCHEMA.names[:-1]} | {"networks": networks}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Task:
        """The reverse of `as_row`."""
        networks = tuple((item["network"], item["weight"]) for item in row["networks"] or ())
        return cls(**{name: row[name] for name in TASKS_SCHEMA.names[:-1]}, networks=networks)


@dataclass(frozen=True, slots=True)
class Program:
    """One measured program of a task.

    Attributes:
        task_id: its task; key: its name within the task (a hash of the trace).
        trace: JSON of `[instructions, decisions]` of the schedule trace.
        strategy: how it was found, one of `STRATEGIES`.
        latencies: seconds of every repeat; empty when it failed.
        latency: median of `latencies` in seconds; NaN when it failed.
        error: None, or one of `ERROR_KINDS`; error_message: what the compiler or the run said.
        framework: who made the trace, `metaschedule`.
        device, target, cpu_model, tvm_version: where it was measured; `target` is JSON.
        measured_at: Unix time; cost_seconds: seconds spent on building and running it.
    """

    task_id: str
    key: str
    trace: str
    strategy: str
    latencies: tuple[float, ...]
    latency: float
    device: str
    target: str
    error: str | None = None
    error_message: str | None = None
    framework: str = "metaschedule"
    cpu_model: str | None = None
    tvm_version: str | None = None
    measured_at: float = math.nan
    cost_seconds: float = math.nan

    @property
    def valid(self) -> bool:
        """Whether it has a latency that can be learnt from."""
        return self.error is None and math.isfinite(self.latency) and self.latency > 0

    def as_row(self) -> dict[str, Any]:
        """The program as a row of `programs.parquet`."""
        row = {name: getattr(self, name) for name in PROGRAMS_SCHEMA.names}
        return row | {"latencies": list(self.latencies)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Program:
        """The reverse of `as_row`."""
        latency = math.nan if row["latency"] is None else row["latency"]
        values = {name: row[name] for name in PROGRAMS_SCHEMA.names}
        return cls(**values | {"latencies": tuple(row["latencies"] or ()), "latency": latency})
