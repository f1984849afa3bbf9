"""The columns of a corpus on disk, its records in memory, and the errors about corpora."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from ..errors import TchubError
from ..features.columns import OPS


class CorpusError(TchubError):
    """A corpus, a log or a file beside it is missing, incomplete or damaged."""


FORMAT = 2
"""Raise it when a reader of the old number would misread the new files."""
META_FILE, TASKS_FILE, PROGRAMS_FILE = "corpus.json", "tasks.parquet", "programs.parquet"

ERROR_KINDS = ("build", "build_timeout", "run", "run_timeout", "crash", "invalid")
STRATEGIES = ("random", "evolutionary", "exhaustive", "tuned")
FRAMEWORKS = ("metaschedule", "ansor", "autotvm")
REQUIRED_META = ("device", "family", "target", "tvm_version", "licence")


_TEXT, _NUMBER = pa.string(), pa.float64()
_NULLABLE = {
    *("networks", "primitives", "latencies", "latency", "error", "error_message"),
    *("cpu_model", "tvm_version", "measured_at", "cost_seconds", "licence", "source"),
}


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name in _NULLABLE) for name, kind in columns.items()])


TASKS_SCHEMA = _schema(
    **dict.fromkeys(("task_id", "name", "op"), _TEXT),
    flops=_NUMBER,
    **dict.fromkeys(("workload", "computation"), _TEXT),
    networks=pa.list_(pa.struct([("network", _TEXT), ("weight", pa.int64())])),
)
PROGRAMS_SCHEMA = _schema(
    **dict.fromkeys(("task_id", "key", "trace", "primitives", "strategy"), _TEXT),
    latencies=pa.list_(_NUMBER),
    latency=_NUMBER,
    **dict.fromkeys(("error", "error_message", "framework", "device", "target", "cpu_model", "tvm_version"), _TEXT),
    **dict.fromkeys(("measured_at", "cost_seconds"), _NUMBER),
    **dict.fromkeys(("licence", "source"), _TEXT),
)

_DISTRUST = "do not trust the corpus: collect it, or import its log, again"
LONGEST = 3600.0
"""Seconds that a program may take: any unit but seconds, and every sentinel, is beyond it."""
_KNOWN = {"strategy": STRATEGIES, "framework": FRAMEWORKS, "error": (None, *ERROR_KINDS)}

# Columns whose few distinct values repeat on every row; the others (traces, keys, numbers) do not.
DICTIONARY_COLUMNS = [
    *("task_id", "strategy", "error", "framework", "device", "target", "cpu_model", "tvm_version"),
    *("licence", "source"),
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
        computation: what is computed, in the form of `computation`, by which tasks of different corpora are
            joined; empty when it cannot be known.
        networks: (network, how many times it holds this task).
    """

    task_id: str
    name: str
    op: str
    flops: float
    workload: str
    computation: str = ""
    networks: tuple[tuple[str, int], ...] = ()

    def weight(self, networks: tuple[str, ...] | None = None) -> int:
        """Return how many times the task occurs, in all networks or in the ones named."""
        return sum(count for name, count in self.networks if networks is None or name in networks)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the task of a row of `tasks.parquet`."""
        networks = tuple((item["network"], item["weight"]) for item in row["networks"] or ())
        return cls(**{name: row[name] for name in TASKS_SCHEMA.names[:-1]}, networks=networks)

    def check(self) -> None:
        """Raise CorpusError where a value is none that a task can have."""
        problem = "" if self.op in OPS else f"the unknown operator type {self.op!r}"
        if self.flops < 0 or self.flops == math.inf or any(count < 1 for _, count in self.networks):
            problem = f"impossible numbers: {self.flops} operations, {self.networks}"
        if problem:
            raise CorpusError(f"task {self.task_id} has {problem}", remedy=_DISTRUST)


@dataclass(frozen=True, slots=True)
class Program:
    """One measured program of a task.

    Attributes:
        task_id: its task; key: its name within the task (a hash of the trace).
        trace: the program in its framework's own form, as JSON: `[instructions, decisions]` of the schedule
            trace (MetaSchedule), the steps (Ansor), the knobs `[[name, kind, value], ...]` (AutoTVM).
        primitives: the program in the common language, as `PrimitiveSequence.to_json` writes it; None where
            the trace of a MetaSchedule program has it.
        strategy: how it was found, one of `STRATEGIES`; `tuned` where a foreign log does not say more.
        latencies: seconds of every repeat; empty when it failed.
        latency: median of `latencies` in seconds; NaN when it failed.
        error: None, or one of `ERROR_KINDS`; error_message: of the compiler or the run.
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
        """Return whether it has a latency that can be learnt from."""
        return self.error is None and math.isfinite(self.latency) and self.latency > 0

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the program of a row of `programs.parquet`."""
        latency = math.nan if row["latency"] is None else row["latency"]
        values = {name: row[name] for name in PROGRAMS_SCHEMA.names}
        return cls(**values | {"latencies": tuple(row["latencies"] or ()), "latency": latency})


def check_programs(rows: pa.Table, path: Path) -> None:
    """Raise CorpusError where a value of programs, with any of their columns, is none that a program can have."""
    names, problem = set(rows.column_names), ""
    for name in names & _KNOWN.keys():
        if strange := set(rows[name].unique().to_pylist()) - set(_KNOWN[name]):
            problem = f"{name} {strange.pop()!r}"
    seconds = [chunk.flatten() for chunk in rows["latencies"].chunks] if "latencies" in names else []
    if {"latency", "error"} <= names:
        seconds.append(rows.filter(rows["error"].is_null())["latency"])
    for values in seconds:
        latencies = values.to_numpy(zero_copy_only=False).astype(float)
        if not np.all(good := (latencies > 0) & (latencies <= LONGEST)):
            problem = f"latency {latencies[~good][0]} s"
    if problem:
        task_id = rows["task_id"][0].as_py()
        message = f"{path}: a program of task {task_id} has the {problem}, which is impossible"
        raise CorpusError(message, remedy=_DISTRUST, path=str(path), task_id=task_id)


# The scope in which latencies compare ---------------------------------------------------------------------

SCOPE = ("device", "family", "cpu_model", "target")
"""Facts of `corpus.json` that must agree before latencies of two corpora compare."""
CORPUS_SCOPE = (*SCOPE, "tvm_version", "framework", "licence", "split")
"""Facts that must agree before two corpora become one, since `corpus.json` has one of each for all programs."""
# The options of a target that name a device; everything else (libraries, keys, limits) may differ on one device.
_NAMING = ("kind", "model", "mcpu", "arch")
_OPTION = re.compile(r"-{1,2}([\w-]+)[= ]([^\s]+)")


def difference(one: Mapping[str, Any], other: Mapping[str, Any], names: tuple[str, ...] = SCOPE) -> str | None:
    """Return the first fact in which two corpora's `corpus.json` differ, None where their latencies compare."""
    return next((name for name in names if one.get(name) != other.get(name)), None)


def contradiction(target: str, other: str) -> str | None:
    """Return the first option in which two targets of a log name different devices, None where there is none.

    Weaker than `difference`: logs spell one device's target in many ways, and one that names nothing may be of any
    device. A target is JSON: an object, or a text as old releases wrote it, e.g. `cuda -keys=cuda,gpu -model=t4`.
    """
    one, two = target_options(target), target_options(other)
    return next((name for name in _NAMING if name in one and name in two and one[name] != two[name]), None)


@cache
def target_options(target: str) -> Mapping[str, str]:
    """Return the options of a target that name its device: any of kind, model, mcpu, arch."""
    try:
        parsed: Any = json.loads(target)
    except ValueError:
        parsed = target
    if isinstance(parsed, Mapping):
        options = {str(key): str(value) for key, value in parsed.items()}
    else:
        kind, _, rest = str(parsed).strip().partition(" ")
        options = {"kind": kind} | dict(_OPTION.findall(rest))
    # `unknown` is what TVM fills in for a model that nobody named.
    return {name: options[name] for name in _NAMING if options.get(name) not in (None, "", "unknown")}
