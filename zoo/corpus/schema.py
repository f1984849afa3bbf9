"""The columns of a corpus on disk, and its records in memory.

Format history (raise `FORMAT` when a reader of the old number would misread the new files, add the old
number's reader to `corpus.py`, and keep a corpus of the old format among the tests):

1. `corpus.json`, `tasks.parquet`, `programs.parquet`; MetaSchedule only.
2. Corpora of all frameworks: the columns `computation` of tasks and `primitives`, `licence`, `source` of programs
   are new. A corpus of format 1 reads as one of format 2 whose new columns are empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..errors import TchubError
from ..features.columns import OPS as OPS


class CorpusError(TchubError):
    """The folder is not a corpus, is incomplete, or does not hold what it says."""


class NewerCorpusError(CorpusError):
    """The corpus was written in a format that this version does not know."""


class CorpusMismatchError(CorpusError):
    """Programs of another device, target or TVM may not be mixed into this corpus."""


class CorpusWriteError(CorpusError):
    """The corpus could not be written (disk full, read-only folder); nothing was replaced."""


class EmptyDatasetError(CorpusError):
    """No task of the selection has enough valid programs to rank."""


class MixedDevicesError(CorpusError):
    """One log holds records of several devices, whose latencies do not mix."""


class UnknownLogError(CorpusError):
    """A file or folder that is no tuning log of a known framework, or holds no readable record."""


FORMAT = 2
META_FILE, TASKS_FILE, PROGRAMS_FILE = "corpus.json", "tasks.parquet", "programs.parquet"

ERROR_KINDS = ("build", "build_timeout", "run", "run_timeout", "crash", "invalid")
STRATEGIES = ("random", "evolutionary", "tuned")
FRAMEWORKS = ("metaschedule", "ansor", "autotvm")
REQUIRED_META = ("device", "family", "target", "tvm_version", "licence")

TASKS_SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("flops", pa.float64(), nullable=False),
        pa.field("workload", pa.string(), nullable=False),
        pa.field("computation", pa.string(), nullable=False),
        pa.field("networks", pa.list_(pa.struct([("network", pa.string()), ("weight", pa.int64())]))),
    ]
)

PROGRAMS_SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("trace", pa.string(), nullable=False),
        pa.field("primitives", pa.string()),
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
        pa.field("licence", pa.string()),
        pa.field("source", pa.string()),
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
    "licence",
    "source",
]


@dataclass(frozen=True, slots=True)
class Task:
    """One subgraph with its shapes.

    Attributes:
        task_id: 16 hex digits; equal ids are the same computation, whatever its name. For MetaSchedule the module's
            structural hash, else a hash of `computation` and of what that leaves out (padding, layout, template).
        name: a name for people, e.g. `fused_conv2d_add_relu`.
        op: operator type, one of `OPS`.
        flops: floating-point operations of one call.
        workload: what the framework itself needs to make the task again: `tvm.ir.save_json` of the TIR module
            for MetaSchedule, the workload key (a JSON text) for Ansor, JSON `[template, args]` for AutoTVM.
        computation: what is computed, told alike for all frameworks (see `computation`), by which tasks of
            different corpora are joined; empty when it cannot be known.
        networks: (network, how many times it holds this task), one entry a network.
    """

    task_id: str
    name: str
    op: str
    flops: float
    workload: str
    computation: str = ""
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
        trace: the program in its framework's own words, as JSON: `[instructions, decisions]` of the schedule
            trace (MetaSchedule), the steps (Ansor), the knobs `[[name, kind, value], ...]` (AutoTVM).
        primitives: the program in the common language, as `PrimitiveSequence.to_json` writes it; None in a
            MetaSchedule corpus of format 1, whose trace tells it.
        strategy: how it was found, one of `STRATEGIES`; `tuned` where a foreign log does not say more.
        latencies: seconds of every repeat; empty when it failed.
        latency: median of `latencies` in seconds; NaN when it failed.
        error: None, or one of `ERROR_KINDS`; error_message: what the compiler or the run said.
        framework: who made the trace, one of `FRAMEWORKS`.
        device, target, cpu_model, tvm_version: where it was measured; `target` is JSON.
        measured_at: Unix time; cost_seconds: seconds spent on building and running it.
        licence: of this record where it came with one; source: the repository or file it was read from.
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
    primitives: str | None = None
    licence: str | None = None
    source: str | None = None

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
