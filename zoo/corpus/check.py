"""Statistics of a corpus, and checks of whether it can be trusted: one pass, a task at a time."""

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

import msgspec
import numpy as np

from ..files import file_sha256
from ..primitives import TraceFormatError
from .computation import normal
from .corpus import Corpus, sequence_of
from .schema import PROGRAMS_FILE, TASKS_FILE, contradiction
from .splits import PARTS, Split, is_held_out, split_tasks

# Above this share of failed programs something is wrong with the machine or the design space.
MAX_FAILED_SHARE = 0.5
_COUNTED = ("error", "strategy", "framework", "licence", "source", "device", "target", "cpu_model")


@dataclass(frozen=True)
class CorpusFinding:
    """One answer of `check_corpus`.

    Attributes:
        message: the number behind the answer, in one line.
    """

    name: str
    ok: bool
    message: str


def check_corpus(corpus: Corpus) -> tuple[dict[str, Any], list[CorpusFinding]]:
    """Return statistics of a corpus (JSON-serialisable), and a finding of each check, good or bad.

    Files, splits, duplicates, failures and devices are checked, and every program is read. Of the statistics,
    `noise_median` and `noise_p90` are the spread of a program's repeats: (largest - smallest) / median.

    Raises:
        CorpusError: a row holds a value that no program can have.
    """
    split, values = split_tasks(corpus), {name: Counter[str | None]() for name in _COUNTED}
    sizes, broken = list[int](), list[str]()
    noise = array("d")  # 8 bytes a program that was timed repeatedly
    twice, seconds = 0, 0.0
    for programs in map(corpus.programs, corpus.tasks):
        sizes += [len(programs)] if programs else []
        twice += len(programs) - len({program.key for program in programs})
        for program in programs:
            for name, counter in values.items():
                counter[getattr(program, name)] += 1
            if len(repeats := program.latencies) > 1:
                noise.append((max(repeats) - min(repeats)) / median(repeats))
            if (cost := program.cost_seconds) and cost > 0:  # neither unknown nor NaN
                seconds += cost
            try:  # numbers were checked where the row was read
                sequence_of(program)
                msgspec.json.decode(program.trace, type=list[msgspec.Raw])
            except (TraceFormatError, msgspec.DecodeError, RecursionError) as error:
                broken.append(f"{program.key} of task {program.task_id}: {error}"[:200])
    total, failed = sum(sizes), Counter({error: count for error, count in values["error"].items() if error})
    stats = {
        "path": str(corpus.path),
        **{name: corpus.meta.get(name) for name in ("device", "cpu_model", "licence")},
        "tasks": len(corpus.tasks),
        "programs": total,
        "valid_programs": total - failed.total(),
        "failed": dict(failed.most_common()),
        "networks": list(corpus.networks),
        "tasks_by_op": dict(Counter(task.op for task in corpus.tasks.values()).most_common()),
        "tasks_without_computation": sum(not task.computation for task in corpus.tasks.values()),
        **{
            f"programs_by_{name}": {value or "not said": count for value, count in values[name].most_common()}
            for name in ("framework", "strategy", "licence", "source")
        },
        "programs_per_task": {
            "min": min(sizes, default=0),
            "median": median(sizes) if sizes else 0,
            "max": max(sizes, default=0),
        },
        "split": {name: len(split.part(name)) for name in PARTS},
        "noise_median": float(np.median(noise)) if noise else None,
        "noise_p90": float(np.quantile(noise, 0.9)) if noise else None,
        "measuring_hours": seconds / 3600,
        "bytes": sum((corpus.path / name).stat().st_size for name in (TASKS_FILE, PROGRAMS_FILE)),
    }
    real, stated = (len(corpus.tasks), total), tuple(map(corpus.meta.get, ("tasks", "programs")))
    share = failed.total() / max(1, total)
    shared = sum(n for n in Counter(task.workload for task in corpus.tasks.values()).values() if n > 1)
    files = corpus.meta.get("files", {})
    differ = ", ".join(name for name, facts in files.items() if file_sha256(corpus.path / name) != facts["sha256"])
    common = f", most often {failed.most_common(1)[0][0]}" if failed else ""
    return stats, [
        CorpusFinding(
            "files", not differ, f"sha256 differs: {differ}" if differ else f"sha256 of {len(files)} files holds"
        ),
        CorpusFinding("counts", real == stated, f"{real[0]} tasks and {real[1]} programs; corpus.json says {stated}"),
        CorpusFinding("readable programs", not broken, f"{len(broken)} cannot be read{': '.join(['', *broken[:1]])}"),
        _check_split(corpus, split),
        CorpusFinding("one id a computation", not shared, f"{shared} tasks share a workload with another"),
        CorpusFinding("no duplicates", not twice, f"{twice} programs occur twice in their task"),
        CorpusFinding("failed share", share <= MAX_FAILED_SHARE, f"{share:.1%} of the programs failed{common}"),
        _check_devices(corpus, values),
    ]


def _check_split(corpus: Corpus, split: Split) -> CorpusFinding:
    """Look for leaks within the corpus: by task, and by computation where the split is by it."""
    by_network = not corpus.meta.get("split") and any(map(is_held_out, corpus.tasks.values()))

    def identities(task_id: str) -> set[str]:
        task = corpus.tasks[task_id]
        return {task_id, task.workload} | ({normal(task.computation)} if task.computation and not by_network else set())

    tested = {identity for task_id in split.test for identity in identities(task_id)}
    trained = (*split.train, *split.val)
    leaked = [t for t in trained if identities(t) & tested or (by_network and is_held_out(corpus.tasks[t]))]
    message = f"{len(leaked)} test tasks in training or validation, of {len(split.test)} test tasks"
    return CorpusFinding("no test task in training", not leaked, message)


def _check_devices(corpus: Corpus, counts: Mapping[str, Counter[str | None]]) -> CorpusFinding:
    devices, targets, models = (list(counts[name]) for name in ("device", "target", "cpu_model"))
    mixed = [
        f"{len(values)} of {name}" for name, values in (("device", devices), ("cpu_model", models)) if len(values) > 1
    ]
    differing = {contradiction(str(one), str(other)) for one, other in combinations(targets, 2)} - {None}
    mixed += [f"targets that differ in {option}" for option in sorted(map(str, differing))]
    if not mixed and devices and devices != [corpus.meta.get("device")]:
        mixed = [f"programs of {devices[0]}, corpus.json says {corpus.meta.get('device')}"]
    return CorpusFinding("one device", not mixed, ", ".join(mixed) or "one device, target and CPU model")
