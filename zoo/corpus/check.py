"""What a corpus holds, and whether it can be trusted."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from .corpus import Corpus
from .schema import PROGRAMS_FILE, TASKS_FILE
from .splits import HELD_OUT, split_tasks

# Above this share of failed programs something is wrong with the machine or the design space.
MAX_FAILED_SHARE = 0.5
_COLUMNS = [
    "key",
    "latency",
    "latencies",
    "error",
    "device",
    "target",
    "cpu_model",
    "strategy",
    "cost_seconds",
]


@dataclass(frozen=True)
class Finding:
    """One answer of `check_corpus`.

    Attributes:
        name: what was checked.
        ok: whether it holds.
        message: the number behind the answer, in one line.
    """

    name: str
    ok: bool
    message: str

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def _columns(corpus: Corpus) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in ("task_id", *_COLUMNS)}
    for task_id in corpus.tasks:
        table = corpus.table(task_id, _COLUMNS)
        for name, values in columns.items():
            values.extend(table[name].to_pylist())
    return columns


def corpus_stats(corpus: Corpus, seed: int = 0) -> dict[str, Any]:
    """Counts, failures, splits and noise of a corpus, JSON-serialisable.

    `noise_median` and `noise_p90` are the spread of a program's repeats: (largest - smallest) / median.
    """
    columns = _columns(corpus)
    split = split_tasks(corpus, seed)
    counts = Counter(columns["task_id"])
    noise = [_spread(repeats) for repeats in columns["latencies"] if repeats and len(repeats) > 1]
    errors = Counter(error for error in columns["error"] if error)
    return {
        "path": str(corpus.path),
        "device": corpus.meta.get("device"),
        "cpu_model": corpus.meta.get("cpu_model"),
        "licence": corpus.meta.get("licence"),
        "tasks": len(corpus.tasks),
        "programs": len(columns["key"]),
        "valid_programs": sum(error is None for error in columns["error"]),
        "failed": dict(errors.most_common()),
        "networks": list(corpus.networks),
        "tasks_by_op": dict(Counter(task.op for task in corpus.tasks.values()).most_common()),
        "programs_by_strategy": dict(Counter(columns["strategy"]).most_common()),
        "programs_per_task": {
            "min": min(counts.values(), default=0),
            "median": median(counts.values()) if counts else 0,
            "max": max(counts.values(), default=0),
        },
        "split": {name: len(split.part(name)) for name in ("train", "val", "test")},
        "noise_median": float(np.median(noise)) if noise else None,
        "noise_p90": float(np.quantile(noise, 0.9)) if noise else None,
        "measuring_hours": float(np.nansum(np.asarray(columns["cost_seconds"], dtype=float)) / 3600),
        "bytes": sum((corpus.path / name).stat().st_size for name in (TASKS_FILE, PROGRAMS_FILE)),
    }


def _spread(repeats: list[float]) -> float:
    return (max(repeats) - min(repeats)) / median(repeats)


def check_corpus(corpus: Corpus, seed: int = 0) -> list[Finding]:
    """Check files, splits, duplicates, failures and devices; every finding is reported, good or bad."""
    columns = _columns(corpus)
    return [
        _check_hashes(corpus),
        _check_counts(corpus, columns),
        _check_leaks(corpus, seed),
        _check_workloads(corpus),
        _check_duplicates(columns),
        _check_failures(columns),
        _check_devices(corpus, columns),
    ]


def _check_hashes(corpus: Corpus) -> Finding:
    known = corpus.meta.get("files", {})
    wrong = [
        name
        for name, facts in known.items()
        if hashlib.sha256((corpus.path / name).read_bytes()).hexdigest() != facts["sha256"]
    ]
    message = f"sha256 differs: {', '.join(wrong)}" if wrong else f"sha256 of {len(known)} files holds"
    return Finding("files", not wrong, message)


def _check_counts(corpus: Corpus, columns: dict[str, list[Any]]) -> Finding:
    found = (len(corpus.tasks), len(columns["key"]))
    said = (corpus.meta.get("tasks"), corpus.meta.get("programs"))
    return Finding("counts", found == said, f"{found[0]} tasks and {found[1]} programs; corpus.json says {said}")


def _check_leaks(corpus: Corpus, seed: int) -> Finding:
    split = split_tasks(corpus, seed)
    test_workloads = {corpus.tasks[task_id].workload for task_id in split.test}
    leaked = [
        task_id
        for task_id in (*split.train, *split.val)
        if task_id in split.test
        or corpus.tasks[task_id].weight(HELD_OUT)
        or corpus.tasks[task_id].workload in test_workloads
    ]
    message = f"{len(leaked)} test tasks in training or validation, of {len(split.test)} test tasks"
    return Finding("no test task in training", not leaked, message)


def _check_workloads(corpus: Corpus) -> Finding:
    repeated = [n for n in Counter(task.workload for task in corpus.tasks.values()).values() if n > 1]
    return Finding("one id a computation", not repeated, f"{sum(repeated)} tasks share a workload with another")


def _check_duplicates(columns: dict[str, list[Any]]) -> Finding:
    pairs = list(zip(columns["task_id"], columns["key"], strict=True))
    extra = len(pairs) - len(set(pairs))
    return Finding("no duplicates", extra == 0, f"{extra} programs occur twice in their task")


def _check_failures(columns: dict[str, list[Any]]) -> Finding:
    errors = Counter(error for error in columns["error"] if error)
    share = sum(errors.values()) / max(1, len(columns["error"]))
    common = f", most often {errors.most_common(1)[0][0]}" if errors else ""
    return Finding("failed share", share <= MAX_FAILED_SHARE, f"{share:.1%} of the programs failed{common}")


def _check_devices(corpus: Corpus, columns: dict[str, list[Any]]) -> Finding:
    found = {name: set(columns[name]) for name in ("device", "target", "cpu_model")}
    mixed = [name for name, values in found.items() if len(values) > 1]
    foreign = bool(found["device"]) and found["device"] != {corpus.meta.get("device")}
    message = "one device, target and CPU model"
    if mixed:
        message = "mixed: " + ", ".join(f"{len(found[name])} of {name}" for name in mixed)
    elif foreign:
        message = f"programs of {found['device'].pop()}, corpus.json says {corpus.meta.get('device')}"
    return Finding("one device", not mixed and not foreign, message)
