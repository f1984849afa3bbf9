"""What a corpus holds, and whether it can be trusted."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from .computation import normal
from .corpus import Corpus
from .schema import PROGRAMS_FILE, TASKS_FILE
from .scope import contradiction
from .splits import PARTS, is_held_out, split_tasks

_COUNTED = ("error", "strategy", "framework", "licence", "source", "device", "target", "cpu_model")
_COLUMNS = [*_COUNTED, "key", "latencies", "cost_seconds"]


@dataclass
class Tally:
    """What was counted; memory grows with the tasks, and by 8 bytes a program that was timed repeatedly.

    Attributes:
        programs: programs by task id.
        valid: valid programs by task id.
        counts: column -> value -> how many programs say so; None is counted too.
        duplicates: programs that are in their task twice.
        noise: spread of the repeats of a program, (largest - smallest) / median.
        seconds: spent on measuring.
    """

    programs: dict[str, int] = field(default_factory=dict)
    valid: dict[str, int] = field(default_factory=dict)
    counts: dict[str, Counter[str | None]] = field(default_factory=lambda: {name: Counter() for name in _COUNTED})
    duplicates: int = 0
    noise: array[float] = field(default_factory=lambda: array("d"))
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """All programs."""
        return sum(self.programs.values())

    @property
    def failed(self) -> Counter[str]:
        """Failed programs by kind of error."""
        return Counter({error: count for error, count in self.counts["error"].items() if error})


def tally(corpus: Corpus) -> Tally:
    """Count a corpus."""
    found = Tally()
    for task_id in corpus.tasks:
        _add(found, task_id, corpus.table(task_id, _COLUMNS))
    return found


def _add(found: Tally, task_id: str, table: pa.Table) -> None:
    found.programs[task_id] = len(table)
    found.valid[task_id] = table["error"].null_count
    found.duplicates += len(table) - len(table["key"].unique())
    for name, counter in found.counts.items():
        for pair in table[name].value_counts().to_pylist():
            counter[pair["values"]] += pair["counts"]
    found.noise.extend(_spread(repeats) for repeats in table["latencies"].to_pylist() if repeats and len(repeats) > 1)
    found.seconds += float(np.nansum(table["cost_seconds"].to_numpy().astype(float)))


def _spread(repeats: list[float]) -> float:
    return (max(repeats) - min(repeats)) / median(repeats)


# Above this share of failed programs something is wrong with the machine or the design space.
MAX_FAILED_SHARE = 0.5


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


def corpus_stats(corpus: Corpus, seed: int = 0) -> dict[str, Any]:
    """Counts, failures, splits and noise of a corpus, JSON-serialisable.

    `noise_median` and `noise_p90` are the spread of a program's repeats: (largest - smallest) / median.
    """
    found, split = tally(corpus), split_tasks(corpus, seed)
    counts = [count for count in found.programs.values() if count]
    return {
        "path": str(corpus.path),
        "device": corpus.meta.get("device"),
        "cpu_model": corpus.meta.get("cpu_model"),
        "licence": corpus.meta.get("licence"),
        "tasks": len(corpus.tasks),
        "programs": found.total,
        "valid_programs": sum(found.valid.values()),
        "failed": dict(found.failed.most_common()),
        "networks": list(corpus.networks),
        "tasks_by_op": dict(Counter(task.op for task in corpus.tasks.values()).most_common()),
        "tasks_without_computation": sum(not task.computation for task in corpus.tasks.values()),
        "programs_by_framework": _said(found, "framework"),
        "programs_by_strategy": _said(found, "strategy"),
        "programs_by_licence": _said(found, "licence"),
        "programs_by_source": _said(found, "source"),
        "programs_per_task": {
            "min": min(counts, default=0),
            "median": median(counts) if counts else 0,
            "max": max(counts, default=0),
        },
        "split": {name: len(split.part(name)) for name in PARTS},
        "noise_median": float(np.median(found.noise)) if found.noise else None,
        "noise_p90": float(np.quantile(found.noise, 0.9)) if found.noise else None,
        "measuring_hours": found.seconds / 3600,
        "bytes": sum((corpus.path / name).stat().st_size for name in (TASKS_FILE, PROGRAMS_FILE)),
    }


def _said(found: Tally, column: str) -> dict[str, int]:
    return {value or "not said": count for value, count in found.counts[column].most_common()}


def check_corpus(corpus: Corpus, seed: int = 0) -> list[Finding]:
    """Check files, splits, duplicates, failures and devices; every finding is reported, good or bad."""
    found = tally(corpus)
    return [
        _check_hashes(corpus),
        _check_counts(corpus, found),
        _check_split(corpus, seed),
        _check_workloads(corpus),
        Finding("no duplicates", not found.duplicates, f"{found.duplicates} programs occur twice in their task"),
        _check_failures(found),
        _check_devices(corpus, found),
    ]


def _check_hashes(corpus: Corpus) -> Finding:
    known = corpus.meta.get("files", {})
    wrong = []
    for name, facts in known.items():
        with (corpus.path / name).open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != facts["sha256"]:
                wrong.append(name)
    message = f"sha256 differs: {', '.join(wrong)}" if wrong else f"sha256 of {len(known)} files holds"
    return Finding("files", not wrong, message)


def _check_counts(corpus: Corpus, tally: Tally) -> Finding:
    found = (len(corpus.tasks), tally.total)
    said = (corpus.meta.get("tasks"), corpus.meta.get("programs"))
    return Finding("counts", found == said, f"{found[0]} tasks and {found[1]} programs; corpus.json says {said}")


def _check_split(corpus: Corpus, seed: int) -> Finding:
    """Within the corpus (`leaks` looks over many): by task, and by computation where the split is by it."""
    split = split_tasks(corpus, seed)
    by_network = not corpus.meta.get("split") and any(map(is_held_out, corpus.tasks.values()))

    def identities(task_id: str) -> set[str]:
        task = corpus.tasks[task_id]
        return {task_id, task.workload} | ({normal(task.computation)} if task.computation and not by_network else set())

    tested = {identity for task_id in split.test for identity in identities(task_id)}
    trained = (*split.train, *split.val)
    leaked = [t for t in trained if identities(t) & tested or (by_network and is_held_out(corpus.tasks[t]))]
    message = f"{len(leaked)} test tasks in training or validation, of {len(split.test)} test tasks"
    return Finding("no test task in training", not leaked, message)


def _check_workloads(corpus: Corpus) -> Finding:
    repeated = [n for n in Counter(task.workload for task in corpus.tasks.values()).values() if n > 1]
    return Finding("one id a computation", not repeated, f"{sum(repeated)} tasks share a workload with another")


def _check_failures(tally: Tally) -> Finding:
    failed = tally.failed
    share = failed.total() / max(1, tally.total)
    common = f", most often {failed.most_common(1)[0][0]}" if failed else ""
    return Finding("failed share", share <= MAX_FAILED_SHARE, f"{share:.1%} of the programs failed{common}")


def _check_devices(corpus: Corpus, tally: Tally) -> Finding:
    devices, targets, models = (list(tally.counts[name]) for name in ("device", "target", "cpu_model"))
    problems = [
        f"{len(found)} of {name}" for name, found in (("device", devices), ("cpu_model", models)) if len(found) > 1
    ]
    words = {contradiction(str(one), str(other)) for one, other in combinations(targets, 2)} - {None}
    problems += [f"targets that differ in {word}" for word in sorted(map(str, words))]
    foreign = bool(devices) and not problems and devices != [corpus.meta.get("device")]
    message = "one device, target and CPU model"
    if problems:
        message = "mixed: " + ", ".join(problems)
    elif foreign:
        message = f"programs of {devices[0]}, corpus.json says {corpus.meta.get('device')}"
    return Finding("one device", not problems and not foreign, message)
